"""The configurations that are compared: those of a study, or plain configuration files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer.config.yaml_text import YamlError, read_yaml
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.run.loading import load

_KEYS: Final = ("configs", "overrides", "runs")
_STUDY: Final = "a study has `runs`: a mapping of names to `configs` and `overrides`"


@attrs.frozen
class Variant:
    """A configuration that is trained with several seeds."""

    name: str
    configs: tuple[Path, ...]
    """Configuration files, of which later ones override earlier ones."""
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The start of the names of its runs."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


def read_variants(paths: Sequence[Path], overrides: Sequence[str] = ()) -> list[Variant]:
    """Return the variants of studies and configurations, with overrides for all. Raises `ConfigError`."""
    variants = [
        attrs.evolve(variant, overrides=(*variant.overrides, *overrides))
        for path in paths
        for variant in _variants(path)
    ]
    folders: dict[str, str] = {}
    for variant in variants:
        if folders.setdefault(variant.folder, variant.name) != variant.name or variants.count(variant) > 1:
            raise ConfigError(f"'{variant.name}' and '{folders[variant.folder]}' would share their run directories")
    return variants


def check(variants: Sequence[Variant], seeds: Sequence[int]) -> None:
    """Raise `ConfigError` with the faults of the first variant that cannot be run, before any is trained."""
    for variant in variants:
        try:
            load(*variant.configs, overrides=[*variant.overrides, *(f"seed={seed}" for seed in seeds[:1])])
        except ConfigError as error:
            text = "{} (in the run '{}')"
            faults = [attrs.evolve(fault, message=text.format(fault.message, variant.name)) for fault in error.faults]
            raise ConfigError(faults) from None


def _variants(path: Path) -> Iterator[Variant]:
    """Yield the variants of a study, or a configuration itself; files in a study are relative to it."""
    study = _read(path)
    if not (isinstance(study, dict) and "runs" in study):
        yield Variant(path.stem, (path,))
        return
    _check_keys(path, "", study, _KEYS)
    runs = study["runs"]
    if not isinstance(runs, dict) or not runs:
        raise ConfigError([Fault("runs", f"expected a mapping of names, found {runs!r}; {path}: {_STUDY}")])
    for name, run in runs.items():
        address = f"runs.{name}"
        _check_keys(path, address, run, _KEYS[:2])
        configs = [*_strings(path, "", study, "configs"), *_strings(path, address, run, "configs")]
        overrides = [*_strings(path, "", study, "overrides"), *_strings(path, address, run, "overrides")]
        if not configs:
            raise ConfigError([Fault(address, f"there is no configuration in {path}; list files under `configs`")])
        yield Variant(str(name), tuple((path.parent / config).resolve() for config in configs), tuple(overrides))


def _read(path: Path) -> Any:
    try:
        return read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.y*ml")])
        raise ConfigError(f"there is no file or run directory {path}.{near}") from None
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _check_keys(path: Path, address: str, data: object, known: Sequence[str]) -> None:
    if not isinstance(data, Mapping):
        raise ConfigError([Fault(address, f"expected a mapping, found {data!r}; {path}: {_STUDY}")])
    for key in data:
        if key not in known:
            place = f"{address}.{key}" if address else str(key)
            text = f"unknown key '{key}' of the study {path}; expected {', '.join(known)}"
            raise ConfigError([Fault(place, f"{text}.{did_you_mean(str(key), known)}")])


def _strings(path: Path, address: str, data: Mapping[str, Any], key: str) -> list[str]:
    found = data.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        place = f"{address}.{key}" if address else key
        raise ConfigError([Fault(place, f"expected a list of texts in {path}, found {found!r}")])
    return found
