"""From YAML to a checked configuration, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hooktrainer.config.conversion import read
from hooktrainer.config.entries import Named, PluginEntry
from hooktrainer.config.faults import Faults
from hooktrainer.config.files import read_files, read_mapping, to_yaml
from hooktrainer.config.sections import SECTIONS, Config
from hooktrainer.config.short_forms import COMPONENTS, instance_name
from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import assemble, key_paths_of


class ConfigWarning(UserWarning):
    """The configuration loads, but is hardly what was meant."""


def load_config(*paths: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in YAML files, later ones on top, with `key=value` overrides.

    All that can be checked without a model is checked, also the options of what it names and the plan of its plugins,
    whose modules are imported. Raises `ConfigError` with every fault. Warns (`ConfigWarning`) without plugins, since
    nothing logs or syncs then.
    """
    if not paths:
        raise ConfigError("no configuration file was given")
    files, faults = [Path(path) for path in paths], Faults()
    return _checked(read_files(files, overrides, faults), faults, files[0].stem)


def config_from_mapping(
    mapping: Mapping[str, object], *, name: str = "run", overrides: Iterable[str] = (), base: Path | None = None
) -> Config:
    """As `load_config`, from plain data; `name` is the run's unless it has one, files are relative to `base`."""
    faults = Faults()
    return _checked(read_mapping(mapping, overrides, base or Path(), faults), faults, name)


def _checked(data: dict[str, Any], faults: Faults, name: str) -> Config:
    run = data.get("run")
    if run is None or (isinstance(run, dict) and run.get("name") is None):
        data["run"] = {**(run or {}), "name": name}
    named = Named.in_data(data)
    faults = attrs.evolve(faults, elsewhere=lambda: key_paths_of(named))
    config = read(Config, data, faults)
    assemble(named, config, faults)
    faults.raise_if_any(SECTIONS)
    assert isinstance(config, Config)
    if not any(entry.enabled for entry in config.plugins):
        warnings.warn("no plugin is enabled: nothing logs, and nothing syncs weights", ConfigWarning, stacklevel=3)
    return config


def dump(config: Config) -> str:
    """The configuration as YAML; loading it gives an equal one."""
    sections = attrs.asdict(config, recurse=False)
    data = {key: attrs.asdict(value) if attrs.has(type(value)) else value for key, value in sections.items()}
    for key in COMPONENTS:
        data[key] = {"use": data[key]["use"], **data[key]["options"]}
    data["plugins"] = [_dumped(entry) for entry in config.plugins]
    return to_yaml(data)


def _dumped(entry: PluginEntry) -> dict[str, object]:
    head: dict[str, object] = {"use": entry.use}
    if entry.name != instance_name(entry.use):
        head["name"] = entry.name
    if not entry.enabled:
        head["enabled"] = False
    if entry.priority:
        head["priority"] = dict(entry.priority)
    return head | dict(entry.options)
