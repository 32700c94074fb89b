"""The short forms of YAML, spelled out, and the names of what they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from hooktrainer.algorithms.registry import FUNCTIONS
from hooktrainer.events import snake_case

Kind: TypeAlias = Literal["plugins", "tasks", "models", "engines", "sinks"]
COMPONENTS: Final[Mapping[str, Kind]] = MappingProxyType({"task": "tasks", "model": "models", "rollout": "engines"})
"""The sections of a configuration that name one class."""
_FILE_USE: Final = re.compile(r"(?P<file>[^:$][^$]*\.py):\w+")


def spelled_out(data: Any, base: Path) -> Any:
    """Short forms (`- weight_sync`, `- weight_sync:`) as mappings with `use`, and files beside the YAML absolute."""
    if not isinstance(data, dict):
        return data
    plugins = data.get("plugins")
    changed = {key: _spelled_out(data[key], base) for key in COMPONENTS if key in data}
    if isinstance(plugins, (list, tuple)):
        changed["plugins"] = [_spelled_out(item, base) for item in plugins]
    if isinstance(algorithm := data.get("algorithm"), dict):
        named = {key: _absolute(algorithm[key], base) for key in FUNCTIONS if key in algorithm}
        changed["algorithm"] = algorithm | named
    return data | changed


def _spelled_out(item: Any, base: Path) -> Any:
    if isinstance(item, str):
        item = {"use": item}
    elif isinstance(item, dict) and list(item.values()) == [None] and "use" not in item:
        item = {"use": next(iter(item))}
    return item | {"use": _absolute(item["use"], base)} if isinstance(item, dict) and "use" in item else item


def _absolute(use: Any, base: Path) -> Any:
    if isinstance(use, str) and (found := _FILE_USE.fullmatch(use)):
        path = base.absolute() / Path(found["file"]).expanduser()
        return f"{path}:{use.rpartition(':')[2]}"
    return use


def instance_name(use: str) -> str:
    """The name of an instance that has no `name`: the short name, or the class of a longer `use` in snake case."""
    _, colon, cls = use.rpartition(":")
    return snake_case(cls) if colon else use


def name_of(item: Any) -> str | None:
    """The name of the instance that an item of the plugin list stands for; None if it is no entry at all."""
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    return name if isinstance(name, str) else instance_name(str(item.get("use")))
