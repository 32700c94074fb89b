"""Write a package with a plugin, a sink or a task of your own, and a test that passes."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Final

import attrs

from hooktrainer.errors import ConfigError, did_you_mean
from hooktrainer.run.registry import KINDS

_TEMPLATES: Final = files(__package__) / "templates"
_USAGE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plugin": "plugins: [metric_aggregation, weight_sync, {use: $name, limit: 0.2}]",
        "sink": "plugins:\n  - {use: log_after_collect, sinks: [console, jsonl, {use: $name, metric: actor/entropy}]}",
        "task": "task: {use: $name, bits: 12}",
    }
)
NOUNS: Final = tuple(_USAGE)
"""What a package can be about."""


@attrs.frozen
class NewPackage:
    """A package that can be written: one module with its test, a `pyproject.toml` and a README."""

    noun: str
    """One of `NOUNS`."""
    name: str
    """Name of the module, of its entry point, and of the folder."""

    def __attrs_post_init__(self) -> None:
        """Raise `ConfigError` for an unknown kind, or a name that is invalid or taken."""
        if self.noun not in _USAGE:
            near = did_you_mean(self.noun, NOUNS)
            raise ConfigError(f"'{self.noun}' is no kind of package; there are {', '.join(NOUNS)}.{near}")
        _check_form(self.name)
        kind = KINDS[f"{self.noun}s"]
        if self.name in kind:
            text = f"a {self.noun} has the name '{self.name}': {kind[self.name].target}. Choose another name"
            raise ConfigError(text)
        found = importlib.util.find_spec(self.name)
        if found is not None and found.origin is not None:  # a plain folder has no origin
            raise ConfigError(f"'{self.name}' is a module already, which yours would hide. Choose another name")
        if self.class_name in _imported(self._rendered(f"{self.noun}.py")):
            text = (
                f"the module of a {self.noun} imports another {self.class_name}, which a class of '{self.name}' hides"
            )
            raise ConfigError(f"{text}. Choose another name")

    @property
    def class_name(self) -> str:
        """Name of the class: `KlStop` for `kl_stop`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    def files(self) -> Mapping[str, str]:
        """Return the text of each file, by its name."""
        return {
            "pyproject.toml": self._rendered("pyproject.toml"),
            "README.md": self._rendered("README.md"),
            f"{self.name}.py": self._rendered(f"{self.noun}.py"),
            f"test_{self.name}.py": self._rendered(f"test_{self.noun}.py"),
        }

    def write(self, parent: Path) -> Path:
        """Write the files into a new folder, and return it. Raises `ConfigError` if the folder exists."""
        folder, contents = parent / self.name, self.files()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"{folder} exists, and nothing is overwritten. Choose another name or directory"
            ) from None
        except OSError as error:
            raise ConfigError(f"{folder} cannot be created: {error.strerror}") from error
        for name, text in contents.items():
            try:
                (folder / name).write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{folder / name} cannot be written: {error.strerror}") from error
        return folder

    def _rendered(self, template: str) -> str:
        names = {"name": self.name, "noun": self.noun, "cls": self.class_name, "project": self.name.replace("_", "-")}
        usage = Template(_USAGE[self.noun]).substitute(names)
        return Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(names, usage=usage)


def _check_form(name: str) -> None:
    if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) and not keyword.iskeyword(name):
        return
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    meant = "_".join(words).lower()
    is_usable = re.match("[a-z]", meant) and not keyword.iskeyword(meant)
    raise ConfigError(
        f"'{name}' cannot be the name of a module and of its entry point; expected lower-case words of letters and "
        "digits with '_' between them, and no keyword of Python." + (f" Did you mean '{meant}'?" if is_usable else "")
    )


def _imported(source: str) -> set[str]:
    """Return the names that a module imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {alias.asname or alias.name for node in nodes for alias in node.names}
