"""Read YAML files and overrides into one plain dictionary; OmegaConf merges and interpolates.

Values of later files win. A list replaces the list of the file before it. A later file that names another task or model
does not inherit the options of the one before. A value that cannot be read is a fault, and `INVALID` in the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hooktrainer.config.faults import Faults, first_line
from hooktrainer.config.overrides import overridden, plain
from hooktrainer.config.scalars import INVALID
from hooktrainer.config.short_forms import Expand
from hooktrainer.errors import ConfigError, did_you_mean

_KINDS: Final[Mapping[type, str]] = {dict: "mapping", list: "list"}
_OWN_OPTIONS: Final = ("task", "model")
"""Sections whose options depend on `use`; engines share most of theirs."""
_MAX_NESTED: Final = 30
"""Interpolated mappings inside each other; a longer chain is circular, which OmegaConf does not detect."""


def read_files(paths: Sequence[Path], overrides: Iterable[str], expand: Expand, faults: Faults) -> dict[str, Any]:
    """Return the files merged in order, with overrides applied and interpolations resolved.

    Raises `ConfigError` with every fault of files that cannot be read or merged.
    """
    unreadable = Faults()
    layers = [_read_file(path, expand, unreadable.at(str(path))) for path in paths]
    unreadable.raise_if_any()
    config = overridden(_merged(layers, paths), overrides, expand, faults)
    return expand(_resolved(config, faults), paths[0].parent)


def read_mapping(
    mapping: Mapping[str, object], overrides: Iterable[str], base: Path, expand: Expand, faults: Faults
) -> dict[str, Any]:
    """Return plain data with overrides applied and interpolations resolved; files are relative to `base`."""
    try:
        config = OmegaConf.create(expand(dict(mapping), base))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"a configuration is plain data: {first_line(error)}") from error
    return expand(_resolved(overridden(config, overrides, expand, faults), faults), base)


def to_yaml(data: Mapping[str, object]) -> str:
    """Return plain data as YAML that reads back the same; text that looks like an interpolation is escaped."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dict(data))))


def _read_file(path: Path, expand: Expand, faults: Faults) -> DictConfig:
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
        faults.add(f"cannot be read: {first_line(error)}")
    if isinstance(config, ListConfig):
        faults.add("the top level must be a mapping such as `trainer: ...`, found a list")
    elif isinstance(config, DictConfig):
        if not config:
            faults.add("the file is empty")
        data: dict[str, Any] = expand(plain(config), path.parent)
        return OmegaConf.create(data)
    return OmegaConf.create()


def _merged(layers: Sequence[DictConfig], paths: Sequence[Path]) -> DictConfig:
    faults, merged = Faults(), OmegaConf.create()
    for path, layer in zip(paths, layers, strict=True):
        _clashes(plain(merged), plain(layer), path, faults)
        faults.raise_if_any()
        for key in _OWN_OPTIONS:
            if _names_another(merged.get(key), layer.get(key)):
                del merged[key]
        merged = OmegaConf.merge(merged, layer)  # type: ignore[assignment]
    return merged


def _names_another(earlier: Any, later: Any) -> bool:
    return (
        isinstance(earlier, DictConfig)
        and isinstance(later, DictConfig)
        and "use" in later
        and (plain(later)["use"] != plain(earlier).get("use"))
    )


def _clashes(earlier: Any, later: Any, path: Path, faults: Faults) -> None:
    """Add a fault where one file has a list and another a mapping; the error of OmegaConf has no address."""
    if isinstance(earlier, dict) and isinstance(later, dict):
        for key in [key for key in earlier if key in later]:
            _clashes(earlier[key], later[key], path, faults.at(key))
    elif {type(earlier), type(later)} == {dict, list}:
        faults.add(f"{path} has a {_KINDS[type(later)]} where an earlier file has a {_KINDS[type(earlier)]}")


def _resolved(node: DictConfig | ListConfig, faults: Faults, *, followed: int = 0) -> Any:
    if isinstance(node, ListConfig):
        return [_value(node, index, faults.at(index), followed=followed) for index in range(len(node))]
    return {key: _value(node, key, faults.at(key), followed=followed) for key in node}


def _value(node: DictConfig | ListConfig, key: Any, faults: Faults, *, followed: int) -> Any:
    if OmegaConf.is_missing(node, key):
        faults.add("a value is required in place of ???")
        return INVALID
    try:
        value = node[key]
        if not isinstance(value, (DictConfig, ListConfig)):
            return value
        if not OmegaConf.is_interpolation(node, key):
            return _resolved(value, faults, followed=followed)
        if followed == _MAX_NESTED:
            raise RecursionError
        return _resolved(value, faults.trial(), followed=followed + 1)  # the section that it refers to has its faults
    except OmegaConfBaseException as error:
        faults.add(first_line(error))
    except RecursionError:
        if followed:
            raise
        faults.add("this interpolation refers to itself")
    return INVALID


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    return str(value) if isinstance(value, Path) else value
