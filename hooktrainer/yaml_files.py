"""YAML files and `key=value` overrides into one plain dictionary; OmegaConf merges and interpolates.

Later files win and replace lists whole. An override finds a plugin by its instance name (`plugins.staleness.every=2`)
or by its place (`plugins.0.every=2`, `plugins[0].every=2`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hooktrainer.errors import ConfigError, did_you_mean
from hooktrainer.faults import Faults
from hooktrainer.registry import COMPONENTS

_KINDS: Final[Mapping[type, str]] = {dict: "mapping", list: "list"}
_FILE_USE: Final = re.compile(r"(?P<file>[^:$][^$]*\.py):\w+")


def read_files(paths: Sequence[Path], overrides: Iterable[str]) -> dict[str, Any]:
    """The files merged in order, overrides applied, interpolations resolved. Raises `ConfigError` with all faults."""
    faults = Faults()
    layers = [_read_file(path, faults.at(str(path))) for path in paths]
    faults.raise_if_any()
    return _resolved(_overridden(_merged(layers, paths), overrides), paths[0].parent)


def read_mapping(mapping: Mapping[str, object], overrides: Iterable[str], base: Path) -> dict[str, Any]:
    """As `read_files`, for a mapping that Python made."""
    try:
        config = OmegaConf.create(spelled_out(dict(mapping), base))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"a configuration is plain data: {_first_line(error)}") from error
    return _resolved(_overridden(config, overrides), base)


def to_yaml(data: Mapping[str, object]) -> str:
    """Plain data as YAML that reads back the same, also text that looks like an interpolation."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dict(data))))


def instance_name(use: str) -> str:
    """The name of an instance that has no `name`: the short name, or the class of a longer `use` in snake case."""
    _, colon, cls = use.rpartition(":")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls).lower() if colon else use


def spelled_out(data: Any, base: Path) -> Any:
    """Short forms (`- weight_sync`, `- weight_sync:`) as mappings with `use`, and files beside the YAML absolute."""
    if not isinstance(data, dict):
        return data
    plugins = data.get("plugins")
    changed = {key: _spelled_out(data[key], base) for key in COMPONENTS if key in data}
    if isinstance(plugins, (list, tuple)):
        changed["plugins"] = [_spelled_out(item, base) for item in plugins]
    return data | changed


def _spelled_out(item: Any, base: Path) -> Any:
    if isinstance(item, str):
        item = {"use": item}
    elif isinstance(item, dict) and list(item.values()) == [None] and "use" not in item:
        item = {"use": next(iter(item))}
    use = item.get("use") if isinstance(item, dict) else None
    if isinstance(use, str) and (found := _FILE_USE.fullmatch(use)):
        path = base.absolute() / Path(found["file"]).expanduser()
        return item | {"use": f"{path}:{use.rpartition(':')[2]}"}
    return item


def _read_file(path: Path, faults: Faults) -> DictConfig:
    config: Any = None
    try:
        config = OmegaConf.load(path)
    except FileNotFoundError:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.y*ml")])
        faults.add(f"there is no such file.{near}")
    except IsADirectoryError:
        faults.add("this is a directory, not a YAML file")
    except UnicodeDecodeError as error:
        faults.add(f"this is not UTF-8 text: {error}")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        faults.add(f"{line}not valid YAML: {getattr(error, 'problem', None) or error}")
    except (OSError, OmegaConfBaseException) as error:
        faults.add(f"cannot be read: {_first_line(error)}")
    if isinstance(config, ListConfig):
        faults.add("the top level must be a mapping such as `trainer: ...`, found a list")
    elif isinstance(config, DictConfig):
        if config:
            return _create(spelled_out(_plain(config), path.parent))
        faults.add("the file is empty")
    return OmegaConf.create()


def _merged(layers: Sequence[DictConfig], paths: Sequence[Path]) -> DictConfig:
    faults, merged = Faults(), OmegaConf.create()
    for path, layer in zip(paths, layers, strict=True):
        _clashes(_plain(merged), _plain(layer), path, faults)
        faults.raise_if_any()
        merged = OmegaConf.merge(merged, layer)  # type: ignore[assignment]
    return merged


def _clashes(earlier: Any, later: Any, path: Path, faults: Faults) -> None:
    """Lists and mappings under one key, of which OmegaConf would not say where they are."""
    if isinstance(earlier, dict) and isinstance(later, dict):
        for key in earlier.keys() & later.keys():
            _clashes(earlier[key], later[key], path, faults.at(key))
    elif {type(earlier), type(later)} == {dict, list}:
        faults.add(f"{path} has a {_KINDS[type(later)]} where an earlier file has a {_KINDS[type(earlier)]}")


def _overridden(config: DictConfig, overrides: Iterable[str]) -> DictConfig:
    faults = Faults()
    for override in overrides:
        key, equals, value = override.partition("=")
        here = faults.at(key)
        if not (key and equals):
            here.add("an override is written key=value, such as trainer.total_steps=10")
        elif path := _path(config, re.sub(r"\[(-?\w+)\]", r".\1", key).split("."), here):
            try:
                config.merge_with_dotlist([f"{path}={value}"])
            except yaml.YAMLError:
                here.add(f"'{value}' is not valid YAML")
            except (OmegaConfBaseException, TypeError, ValueError) as error:
                here.add(f"cannot be set to '{value}': {_first_line(error)}")
        config = _create(spelled_out(_plain(config), Path()))  # an override may bring in a short form
    faults.raise_if_any()
    return config


def _path(config: DictConfig, parts: list[str], faults: Faults) -> str | None:
    """The path with plugin names turned into places; None if a list has no such item."""
    plain: Any = _plain(config)
    places = list(parts)
    for depth, part in enumerate(parts):
        of_plugins = parts[:depth] == ["plugins"]
        if isinstance(plain, list) or (of_plugins and plain is None):
            items: list[Any] = plain or []
            place = _place_of_plugin(items, part, faults) if of_plugins else _place(items, part, faults)
            if place is None:
                return None
            places[depth], plain = str(place), items[place]
        else:
            plain = plain.get(part) if isinstance(plain, dict) else None
    return ".".join(places)


def _place(items: list[Any], part: str, faults: Faults) -> int | None:
    if not part.isdecimal():
        faults.add(f"an item of a list is named by its place, found '{part}'")
    elif int(part) >= len(items):
        faults.add(f"there is no item {part}: the list has length {len(items)}, and places count from 0")
    else:
        return int(part)
    return None


def _place_of_plugin(items: list[Any], part: str, faults: Faults) -> int | None:
    if part.isdecimal():
        return _place(items, part, faults)
    names = [name_of(item) for item in items]
    places = [place for place, name in enumerate(names) if name == part]
    if len(places) > 1:
        faults.add(f"several plugins have the name '{part}'; give each a `name`, or say which by its place: {places}")
    elif not places:
        known = [name for name in names if name]
        faults.add(
            f"no plugin has the name '{part}'; there are {', '.join(known) or 'none'}.{did_you_mean(part, known)}"
        )
    return places[0] if len(places) == 1 else None


def name_of(item: Any) -> str | None:
    """The name of the instance that an item of the plugin list stands for; None if it is no entry at all."""
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    return name if isinstance(name, str) else instance_name(str(item.get("use")))


def _resolved(config: DictConfig, base: Path) -> dict[str, Any]:
    faults = Faults()
    _check_node(config, faults)
    faults.raise_if_any()
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return spelled_out(resolved, base)  # type: ignore[no-any-return]


def _check_node(node: DictConfig | ListConfig, faults: Faults) -> None:
    keys: Iterable[Any] = range(len(node)) if isinstance(node, ListConfig) else list(node.keys())
    for key in keys:
        if OmegaConf.is_missing(node, key):
            faults.at(key).add("this value must be given; ??? only holds its place")
            continue
        try:
            child = node[key]
        except OmegaConfBaseException as error:
            faults.at(key).add(_first_line(error))
            continue
        if isinstance(child, (DictConfig, ListConfig)) and not OmegaConf.is_interpolation(node, key):
            _check_node(child, faults.at(key))


def _create(data: Mapping[str, object]) -> DictConfig:
    return OmegaConf.create(dict(data))


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
