"""The layout: few entries at the top, packages with explicit exports, and limits on the size of files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hooktrainer
import hooktrainer_plugins

ROOT = Path(str(hooktrainer.__file__)).parent
PLUGINS = Path(str(hooktrainer_plugins.__file__)).parent
NOT_COUNTED = {"__init__.py", "__main__.py", "py.typed"}
MAX_AT_TOP = 22
MAX_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_PUBLIC_METHODS = 12

FILES = sorted([*ROOT.rglob("*.py"), *PLUGINS.rglob("*.py")])
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))


def named(path: Path) -> str:
    """The path, relative to the folder of the package."""
    return str(path.relative_to(ROOT.parent if path.is_relative_to(ROOT) else PLUGINS.parent))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def surface(module: Path) -> tuple[str, ...] | None:
    """The names in `__all__` of a module, in their order; None if it has none."""
    for node in tree_of(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return tuple(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return None


@cache
def defined(module: Path) -> frozenset[str]:
    """The public names that a module defines, or imports for others: `import name as name`, or in its `__all__`."""
    names = set(surface(module) or ())
    for node in ast.walk(tree_of(module)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname for alias in node.names if alias.asname == alias.name}
    pending = list(tree_of(module).body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.If, ast.Try)):
            pending += node.body
        else:
            stored = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            names |= {part.id for part in stored if isinstance(part.ctx, ast.Store)}
    return frozenset(name for name in names if not name.startswith("_"))


def imports(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """Every import of hooktrainer in a file: its line, the module, and the name taken from it, if any."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)


def refusal(module: str, name: str | None) -> str | None:
    """Why another package may not import this; None if it may."""
    folder, parts = ROOT, module.split(".")[1:]
    for place, part in enumerate(parts):
        if place and part not in (surface(folder / "__init__.py") or ()):
            return f"'{part}' is not in __all__ of {named(folder)}/__init__.py"
        if (folder / f"{part}.py").exists():
            unknown = name is not None and name not in defined(folder / f"{part}.py")
            return f"{named(folder)}/{part}.py does not define a public name '{name}'" if unknown else None
        folder = folder / part
    if name is None or name in (surface(folder / "__init__.py") or ()):
        return None
    if folder == ROOT and ((folder / name).is_dir() or (folder / f"{name}.py").exists()):
        return None
    return f"'{name}' is not in __all__ of {named(folder)}/__init__.py"


def topic(path: Path) -> str:
    """The entry at the top of the package that a file belongs to."""
    return path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else "a plugin"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_the_top_of_the_package_has_few_entries() -> None:
    found = sorted(
        path.name
        for path in ROOT.iterdir()
        if path.name not in NOT_COUNTED and (path.suffix == ".py" or (path / "__init__.py").exists())
    )
    message = f"{len(found)} entries at the top of hooktrainer/, at most {MAX_AT_TOP}: move a module into its package"
    assert len(found) <= MAX_AT_TOP, f"{message}\n{', '.join(found)}"


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_package_init_has_a_docstring_and_all(package: Path) -> None:
    init = package / "__init__.py"
    names = surface(init)

    assert ast.get_docstring(tree_of(init)), (
        f"{named(init)}: add a docstring of one sentence that describes the package"
    )
    assert names is not None, f"{named(init)}: add __all__, the names and submodules that other packages may import"
    ordered = tuple(sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)))
    assert names == ordered, f"{named(init)}: sort __all__ (ruff RUF022 does)"
    private = [name for name in names if name.startswith("_")]
    assert not private, f"{named(init)}: __all__ lists private names: {', '.join(private)}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_packages_import_only_the_exports_of_other_packages(path: Path) -> None:
    broken = [
        f"{named(path)}:{line}: {' '.join(filter(None, (module, name)))}: {reason}"
        for line, module, name in imports(path)
        if module.split(".")[0] == "hooktrainer"
        and (module == "hooktrainer" or topic(path) not in {module.split(".")[1], f"{module.split('.')[1]}.py"})
        and (reason := refusal(module, name))
    ]

    assert not broken, "import a name in __all__ of the package, or add it there:\n" + "\n".join(broken)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_file_is_within_the_line_limit(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    long = [
        f"{named(path)}:{node.lineno}: {node.name} has {size} lines, at most {MAX_FUNCTION_LINES}: split it"
        for node in functions(path)
        if node.end_lineno and (size := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    wide = [
        f"{named(path)}:{node.lineno}: {node.name} has {len(methods)} public methods, at most {MAX_PUBLIC_METHODS}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and len(methods := public_methods(node)) > MAX_PUBLIC_METHODS
    ]

    assert lines <= MAX_LINES, f"{named(path)} has {lines} lines, at most {MAX_LINES}: split it by topic"
    assert not [*long, *wide], "\n".join([*long, *wide])


def public_methods(node: ast.ClassDef) -> set[str]:
    """The public methods of a class, without its properties."""
    return {
        part.name
        for part in node.body
        if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")
        if not any(ast.unparse(mark).endswith(("property", ".setter")) for mark in part.decorator_list)
    }
