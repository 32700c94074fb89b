"""Short forms of YAML as full mappings: `- weight_sync`, and `file.py:Name` relative to the YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from hooktrainer._util.registry import NAMES_A
from hooktrainer.config.fields import init_fields, option_name
from hooktrainer.config.sections import COMPONENTS, section_classes

Naming: TypeAlias = Callable[[str, str], Collection[str]]
"""Returns, for a section and the class that its `use` names, the options whose values are names themselves."""
Expand: TypeAlias = Callable[[dict[str, Any], Path], dict[str, Any]]
"""Expands the short forms of plain data; relative files are relative to the directory."""
_FILE_NAME: Final = re.compile(r"(?P<file>[^:$][^$]*\.py):\w+")


def expanded(data: dict[str, Any], base: Path, *, naming: Naming) -> dict[str, Any]:
    """Return plain data with short forms as mappings with `use`, and with absolute files in all names."""
    plugins = data.get("plugins")
    changed: dict[str, Any] = {key: _entry(key, data[key], base, naming) for key in COMPONENTS if key in data}
    if isinstance(plugins, (list, tuple)):
        changed["plugins"] = [_entry("plugins", item, base, naming) for item in plugins]
    for key, cls in section_classes().items():
        if isinstance(section := data.get(key), dict):
            named = [option_name(field) for field in init_fields(cls) if NAMES_A in field.metadata]
            changed[key] = section | {option: _absolute(section[option], base) for option in named if option in section}
    return data | changed


def _entry(section: str, item: Any, base: Path, naming: Naming) -> Any:
    """Return an item that names a class as a mapping with `use`; anything else as it is. Options may be such items."""
    if isinstance(item, str):
        item = {"use": item}
    elif isinstance(item, dict) and list(item.values()) == [None] and "use" not in item:
        item = {"use": next(iter(item))}
    if not isinstance(item, dict) or "use" not in item:
        return item
    use = _absolute(item["use"], base)
    nested = {key: _nested(section, value, base, naming) for key, value in item.items()}
    files = {key: made for key, value in nested.items() if key != "use" and (made := _found(value, base)) != value}
    named = naming(section, use) if files and isinstance(use, str) else ()  # only then the class is imported
    return nested | {"use": use} | {key: made for key, made in files.items() if key in named}


def _nested(section: str, value: Any, base: Path, naming: Naming) -> Any:
    """Expand an option whose value is a mapping with `use`, or a list of them."""
    if isinstance(value, list):
        return [_nested(section, item, base, naming) for item in value]
    return _entry(section, value, base, naming) if isinstance(value, dict) and "use" in value else value


def _found(value: Any, base: Path) -> Any:
    """Return `file.py:Name`, and a file that exists, with the file absolute; other values as they are."""
    made = _absolute(value, base)
    if made == value and isinstance(value, str) and "$" not in value:
        with suppress(OSError, ValueError, RuntimeError):  # text that cannot be a path
            path = base.absolute() / Path(value).expanduser()
            return str(path) if value and path.exists() else value
    return made


def _absolute(name: Any, base: Path) -> Any:
    """Return `file.py:Name`, or each in a list, with the file absolute; other values as they are."""
    if isinstance(name, list):
        return [_absolute(item, base) for item in name]
    if isinstance(name, str) and (found := _FILE_NAME.fullmatch(name)):
        with suppress(RuntimeError):  # there is no such user; a check of the name reports the missing file
            path = base.absolute() / Path(found["file"]).expanduser()
            return f"{path}:{name.rpartition(':')[2]}"
    return name
