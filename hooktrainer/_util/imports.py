"""Import the modules that a configuration names: installed ones, and files next to the YAML."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import stat
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from hooktrainer.errors import ConfigError, did_you_mean, line_of

FILE_RULE: Final = (
    "A relative file in YAML is relative to the YAML file; in an override or a command, to the working directory."
)
"""The directories that relative files are relative to, for messages."""
_NOT_OWN: Final = (
    *{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    f"{Path(__file__).parents[1]}{os.sep}",
    "<",
)
"""Starts of the file names of Python, of installed distributions, of hooktrainer, and of generated code."""


def load_module(where: str) -> ModuleType:
    """Return the module `package.module` or `file.py`; a relative file is relative to the working directory.

    Raises `ConfigError`, caused by the exception that the module raised.
    """
    return _load_file(Path(where)) if where.endswith(".py") else _import(where)


def described(error: BaseException) -> str:
    """Return the type and text of an unexpected error, with the line of the user's code that raised it."""
    places = _places(error)
    own = [place for place in places if not place[0].startswith(_NOT_OWN)]
    if not own and error.__cause__ is not None:  # Python raises RuntimeError from the StopIteration of a generator
        own = [place for place in _places(error.__cause__) if not place[0].startswith(_NOT_OWN)]
    place = " ({}, line {})".format(*(own or places)[-1]) if places else ""
    return f"{line_of(error)}{place}"


def _places(error: BaseException) -> list[tuple[str, int | None]]:
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return [*places, (error.filename or "", error.lineno)] if isinstance(error, SyntaxError) else places


def require_file(path: Path) -> None:
    """Raise `ConfigError` unless the file exists; suggest the file with the closest name."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py") if other.name != path.name])
        raise ConfigError(f"there is no file {path}.{near or f' {FILE_RULE}'}") from None
    except (OSError, ValueError) as error:  # a symbolic link to itself, a name that is too long, a zero byte
        raise ConfigError(f"the file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a file")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            text = f"there is no module '{error.name}'; a file is written with its extension, as in my_file.py:Name"
            raise ConfigError(text) from error
        raise ConfigError(f"importing {name} failed: {described(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"importing {name} failed: {described(error)}") from error


def _load_file(path: Path) -> ModuleType:
    """Return the module in a file; the file is executed once per process."""
    path = Path(os.path.realpath(path))  # `resolve` raises for a symbolic link to itself
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"hooktrainer_file_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    require_file(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # pickle, inspect and attrs look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ConfigError(f"importing {path} failed: {described(error)}") from error
    return module
