"""Modules that a configuration names: importable ones, and files beside the YAML."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from hooktrainer.errors import ConfigError, did_you_mean


def load_module(where: str) -> ModuleType:
    """The module behind `package.module` or `file.py`. Raises `ConfigError`, caused by what the module raised.

    A file that is not absolute is relative to the working directory.
    """
    return _load_file(Path(where)) if where.endswith(".py") else _import(where)


def described(error: BaseException) -> str:
    """An error that nobody raised on purpose, with the line that it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    return f"{type(error).__name__}: {error} ({file}, line {line})"


def require_file(path: Path) -> None:
    """Raise `ConfigError` unless there is such a file, with the closest one that there is."""
    if not path.is_file():
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")])
        raise ConfigError(f"there is no file {path}.{near}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module '{error.name}'; a file is named as in my_plugin.py:Class") from error
        raise ConfigError(f"importing {name} failed: {described(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"importing {name} failed: {described(error)}") from error


def _load_file(path: Path) -> ModuleType:
    """The module in a file, executed once whatever the number of things that are taken from it."""
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"hooktrainer_file_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    require_file(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where pickle, inspect and attrs look
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"importing {path} failed: {described(error)}") from error
    return module
