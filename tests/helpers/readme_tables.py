"""Tables of README files that are generated from the code, between `<!-- generated: NAME -->` and `<!-- end -->`.

python tests/helpers/readme_tables.py            # name the pages whose tables are out of date
python tests/helpers/readme_tables.py --write    # rewrite them; `make readme` does the same
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hooktrainer import Priority, cli
from hooktrainer.algorithms.registry import FUNCTIONS
from hooktrainer.bus.handlers import PlacedPlugin, handlers_of
from hooktrainer.config.sections import section_classes
from hooktrainer.run import registry
from hooktrainer.run.glossary import GLOSSARY
from hooktrainer.run.option_docs import options_of, summary

ROOT = Path(__file__).parents[2]
_MARKED = re.compile(r"(<!-- generated: (?P<name>.+?) -->\n)(?P<old>.*?)(?P<end><!-- end -->|\Z)", re.DOTALL)


def bands() -> Iterator[Sequence[str]]:
    """Bands of priorities, in running order."""
    yield "band", "priority"
    for band in sorted(Priority):
        yield f"`{band.name}`", str(int(band))


def commands() -> Iterator[Sequence[str]]:
    """Commands of the command line."""
    yield "command", "does"
    for found in pkgutil.iter_modules(cli.__path__):
        if not found.name.startswith("_"):
            module = importlib.import_module(f"{cli.__name__}.{found.name}")
            yield f"`hooktrainer {found.name}`", first_sentence(module.__doc__)


def plugins() -> Iterator[Sequence[str]]:
    """Registered plugins of this distribution, with their options and defaults."""
    yield "plugin", "does", "options"
    for name, found in registry.PLUGINS.items():
        if found.distribution == "hooktrainer":
            cls = registry.PLUGINS.resolve(name)
            options = ", ".join(f"`{option.name}: {option.default or 'required'}`" for option in options_of(cls))
            yield f"`{name}`", first_sentence(summary(cls)), options or "none"


def handlers() -> Iterator[Sequence[str]]:
    """Registered plugins of this distribution, with the signals and bands of their handlers."""
    yield "plugin", "does", "handlers"
    for name, found in registry.PLUGINS.items():
        if found.distribution == "hooktrainer":
            cls = registry.PLUGINS.resolve(name)
            places = [
                f"{handler.event.signal} {handler.band.name}"
                for handler in handlers_of(PlacedPlugin.of(cls(), 0)).handlers
            ]
            yield f"[`{name}`](#{name})", first_sentence(summary(cls)), ", ".join(dict.fromkeys(places))


def options(name: str) -> Iterator[Sequence[str]]:
    """Options of a section, or of a registered plugin, engine, task or model."""
    yield "option", "type", "default", "meaning"
    found = [section_classes()[name]] if name in section_classes() else []
    found += [kind.resolve(name) for kind in registry.KINDS.values() if name in kind]
    if len(found) != 1:
        raise LookupError(f"{len(found)} classes have the name {name}")
    for option in options_of(found[0]):
        default = f"`{option.default}`" if option.default else "required"
        yield f"`{option.name}`", f"`{option.type}`", default, " ".join(option.doc.split())


def choices(key: str) -> Iterator[Sequence[str]]:
    """Functions that a key of the `algorithm` section can name."""
    yield f"`{key}`", "computes"
    for name in FUNCTIONS[key]:
        does = first_sentence(inspect.getdoc(FUNCTIONS[key].resolve(name)))
        yield f"`{name}`", does.removeprefix("Return ")


def metrics(prefix: str) -> Iterator[Sequence[str]]:
    """Metrics whose names begin with one of these prefixes, which commas separate."""
    yield "metric", "unit", "reduction", "meaning"
    chosen = [doc for doc in GLOSSARY if doc.name.startswith(tuple(prefix.split(",")))]
    if not chosen:
        raise LookupError(f"no metric begins with {prefix}")
    for doc in chosen:
        name = doc.name.replace("*", "{mean,max,min}") if doc.name.endswith("*") else doc.name
        yield f"`{name}`", doc.unit, doc.reduction, doc.meaning


def files(folder: str) -> Iterator[Sequence[str]]:
    """Modules of a folder, by their docstrings; a package is listed by the one of its `__init__`."""
    yield "file", "is about"
    for path in sorted((ROOT / folder).iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix == ".py" and source.exists() and path.name != "__init__.py":
            name = f"{path.name}/" if path.is_dir() else path.name
            yield f"[`{name}`]({name})", first_sentence(ast.get_docstring(ast.parse(source.read_text())))


TABLES: Mapping[str, Callable[..., Iterator[Sequence[str]]]] = {
    "bands": bands,
    "choices": choices,
    "commands": commands,
    "files": files,
    "handlers": handlers,
    "metrics": metrics,
    "options": options,
    "plugins": plugins,
}
EXAMPLES = (
    "bands",
    "commands",
    "plugins",
    "handlers",
    "files hooktrainer/replay",
    "metrics actor/",
    "options staleness",
    "options trainer",
    "options process",
    *(f"choices {key}" for key in FUNCTIONS),
)


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring on one line, without its full stop."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"\.(?: (?=[A-Z`])|$)", paragraph)[0]


def table(name: str) -> str:
    """Return the table of a name, `options staleness` for example, as Markdown. Raises `ValueError` for others."""
    kind, *arguments = name.split()
    try:
        head, *rows = TABLES[kind](*arguments)
    except (LookupError, TypeError, OSError) as error:
        known = ", ".join(TABLES)
        raise ValueError(
            f"<!-- generated: {name} -->: there is no such table ({error!r}); there are {known}"
        ) from error
    return "".join(map(_line, [head, ["---"] * len(head), *rows]))


def _line(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


def updated(text: str) -> str:
    """Return a page with its generated tables as they are now."""

    def replaced(match: re.Match[str]) -> str:
        if not match["end"] or "<!-- generated:" in match["old"]:
            raise ValueError(f"<!-- generated: {match['name']} --> has no <!-- end -->")
        return f"{match[1]}\n{table(match['name'])}\n{match['end']}"

    return _MARKED.sub(replaced, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or rewrite pages; return 1 if a page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the tables")
    parser.add_argument("pages", nargs="*", type=Path, help="pages (default: every README.md of the project, and docs)")
    args = parser.parse_args(arguments)
    stale = 0
    for page in args.pages or _pages():
        text = page.read_text()
        new = updated(text)
        if new == text:
            continue
        print(f"{page}: {'rewritten' if args.write else 'out of date'}")
        if args.write:
            page.write_text(new)
        else:
            stale = 1
    return stale


def _pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *(page for folder in ("hooktrainer", "plugins") for page in (ROOT / folder).rglob("README.md")),
    ]


if __name__ == "__main__":
    sys.exit(main())
