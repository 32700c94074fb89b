"""Load a configuration from YAML files or plain data, and write it as YAML."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast

import attrs

from hooktrainer.config import Config, PluginEntry
from hooktrainer.config.conversion import read
from hooktrainer.config.entries import instance_name
from hooktrainer.config.faults import Faults
from hooktrainer.config.files import read_files, read_mapping, to_yaml
from hooktrainer.config.other_names import OPTIONS
from hooktrainer.config.sections import COMPONENTS, SECTIONS
from hooktrainer.config.short_forms import expanded
from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import Composition, compose, paths_of_keys
from hooktrainer.run.registry import naming_options

_EXPAND: Final = partial(expanded, naming=naming_options)


class ConfigWarning(UserWarning):
    """The configuration is valid, but probably not as intended."""


def load_config(*paths: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Return the configuration in YAML files, merged in order, with `key=value` overrides.

    Imports the classes that it names, and checks everything that needs no model: the options of plugins and components
    too, and the plan. Raises `ConfigError` with every fault. Warns (`ConfigWarning`) if no plugin is enabled, since
    nothing logs or syncs weights then.
    """
    return _handed_over(_warned(_read(paths, overrides)))


def load(*paths: str | Path, overrides: Iterable[str] = ()) -> Composition:
    """Return the composition of the configuration that `load_config` returns."""
    return _warned(_read(paths, overrides))


def path_of_option(name: str, paths: Sequence[str | Path]) -> str:
    """Return the full path of the option that has this name in the files, or here for verl and TRL; else "".

    A name with a dot counts as a full path.
    """
    if "." in name:
        return name
    data: dict[str, Any] = {}
    with suppress(ConfigError):  # without the files, the options of their classes are unknown
        data = read_files([Path(path) for path in paths], (), _EXPAND, Faults()) if paths else {}
    return paths_of_keys(_classes_in(data)).get(name) or OPTIONS.get(name, "")


def config_from_mapping(
    mapping: Mapping[str, object], *, name: str = "run", overrides: Iterable[str] = (), base: Path | None = None
) -> Config:
    """Return the configuration in plain data, checked as `load_config` does.

    `name` is the default of `run.name`; files are relative to `base`, or to the working directory.
    """
    faults = Faults()
    data = read_mapping(mapping, overrides, base or Path(), _EXPAND, faults)
    return _handed_over(_warned(_composed(data, faults, name)))


def _read(paths: Sequence[str | Path], overrides: Iterable[str]) -> Composition:
    if not paths:
        raise ConfigError("no configuration file was given")
    files, faults = [Path(path) for path in paths], Faults()
    return _composed(read_files(files, overrides, _EXPAND, faults), faults, files[0].stem)


def _composed(data: dict[str, Any], faults: Faults, name: str) -> Composition:
    run = data.get("run")
    if run is None or (isinstance(run, dict) and run.get("name") is None):
        data["run"] = {**(run or {}), "name": name}
    faults = attrs.evolve(faults, elsewhere=cache(lambda: paths_of_keys(_classes_in(data))))
    return compose(read(Config, data, faults), faults)


def _warned(composition: Composition) -> Composition:
    if not composition.plan.plugins:
        text = "no plugin is enabled: nothing logs, and nothing syncs weights"
        warnings.warn(text, ConfigWarning, stacklevel=3)  # the caller of the public function
    return composition


def _handed_over(composition: Composition) -> Config:
    composition.config.composed.put(composition)
    return composition.config


def _classes_in(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the class for each address that has one, in data that may have faults."""
    plugins = data.get("plugins")
    items = {key: data.get(key) for key in COMPONENTS}
    for item in plugins if isinstance(plugins, list) else ():
        if isinstance(item, dict):
            items[f"plugins.{item.get('name') or instance_name(str(item.get('use')))}"] = item
    return {key: str(item["use"]) for key, item in items.items() if isinstance(item, dict) and "use" in item}


def dump(config: Config) -> str:
    """Return the configuration as YAML; loading it gives an equal one."""
    return to_yaml(_data(config))


def as_plain(config: Config) -> dict[str, Any]:
    """Return the configuration as data that JSON can hold, for trackers."""
    return cast("dict[str, Any]", _plain(_data(config)))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _data(config: Config) -> dict[str, Any]:
    sections = {key: getattr(config, key) for key in SECTIONS}
    data = {key: attrs.asdict(value) if attrs.has(type(value)) else value for key, value in sections.items()}
    for key in COMPONENTS:
        data[key] = {"use": data[key]["use"], **data[key]["options"]}
    data["plugins"] = [_dumped(entry) for entry in config.plugins]
    return data


def _dumped(entry: PluginEntry) -> dict[str, object]:
    head: dict[str, object] = {"use": entry.use}
    if entry.name != instance_name(entry.use):
        head["name"] = entry.name
    if not entry.enabled:
        head["enabled"] = False
    if entry.priority:
        head["priority"] = dict(entry.priority)
    return head | dict(entry.options)
