"""The typed configuration: one frozen class for each section of the YAML, and the checks between them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs
from attrs.validators import ge, gt, optional

from hooktrainer.algorithms.options import Algorithm
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.faults import Faults, shown
from hooktrainer.learner.options import Optim
from hooktrainer.options import option_paths
from hooktrainer.registry import COMPONENTS, Group
from hooktrainer.schema import HINT, init_fields, key_paths, read, read_fields
from hooktrainer.yaml_files import instance_name, name_of, read_files, read_mapping, to_yaml

_RESERVED: Final = ("use", "name", "enabled", "priority")


def _is_name(_instance: object, _attribute: object, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][\w-]*", value):  # a number would be a place, a dot the end of the name
        raise ValueError(f"a name is letters, digits, '_' and '-', and starts with no digit; found {value!r}")


def _is_folder(_instance: object, _attribute: object, value: str) -> None:
    if Path(value).name != value or value == "..":
        raise ValueError(f"a run is kept in one folder, so its name has no '/'; found {value!r}")


def _is_whole_step(trainer: TrainerConfig, _attribute: object, value: int) -> None:
    updates, mini = trainer.parameter_sync_step, trainer.ppo_mini_batch_size
    if value != updates * mini:
        raise ValueError(
            f"{value} is not parameter_sync_step x ppo_mini_batch_size = {updates} x {mini} = {updates * mini}"
        )


def _holds_a_mini_batch(config: Config, _attribute: object, replay: ReplayConfig) -> None:
    mini = config.trainer.ppo_mini_batch_size
    if replay.capacity is not None and replay.capacity < mini:
        raise ConfigError([Fault("replay.capacity", f"{replay.capacity} groups cannot hold a mini-batch of {mini}")])


class ConfigWarning(UserWarning):
    """The configuration loads, but is hardly what was meant."""


@attrs.frozen(kw_only=True)
class Use:
    """A component that the YAML names, and the options for it; they are checked when it is built."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` beside the YAML."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> Use | None:
        """From a name, or a mapping with `use`."""
        if (item := _with_use(data, faults)) is None:
            return None
        use = item.pop("use")
        return read_fields(cls, init_fields(cls), {"use": use, "options": item}, faults, faults.address)


@attrs.frozen(kw_only=True)
class PluginEntry:
    """One item of the plugin list; the options are checked when the plugin is built."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` beside the YAML."""
    name: str = attrs.field(validator=_is_name)
    """Name of the instance: in overrides, metrics, faults and checkpoints. Taken from `use` if left out."""
    enabled: bool = True
    """Whether it takes part."""
    priority: Mapping[str, int] = attrs.field(factory=dict)
    """Priorities by signal, or by method where the plugin has two handlers on one signal."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""
    address: str = ""
    """Where it stands in the YAML."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> PluginEntry | None:
        """From a name, or a mapping with `use`."""
        if (item := _with_use(data, faults)) is None:
            return None
        reserved = {key: item.pop(key) for key in _RESERVED if key in item}
        if reserved.get("name") is None:
            reserved["name"] = instance_name(str(reserved["use"]))
        known = reserved | {"options": item, "address": faults.address}
        return read_fields(cls, init_fields(cls), known, faults, faults.address)


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """How long the run is, and how its steps are cut."""

    total_steps: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Steps, each with one weight sync; until the data ends if left out."""
    total_epochs: int = attrs.field(default=1, validator=ge(1))
    """Passes over the data, joined; the run ends with the data if that is before `total_steps`."""
    train_batch_size: int = attrs.field(validator=[ge(1), _is_whole_step])
    """Prompts of one step: `parameter_sync_step` x `ppo_mini_batch_size`."""
    ppo_mini_batch_size: int = attrs.field(validator=ge(1))
    """Prompts of one update."""
    parameter_sync_step: int = attrs.field(default=1, validator=ge(1))
    """P, the updates between two weight syncs."""
    num_warmup_batches: int = attrs.field(default=0, validator=ge(0))
    """W, the mini-batches that are dispatched before the first update; 0 means that nothing overlaps."""
    intra_op_threads: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Threads of one torch operation; torch decides if left out."""


@attrs.frozen(kw_only=True)
class ReplayConfig:
    """The buffer between rollouts and learner."""

    capacity: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Groups that may be outstanding at once, at least one mini-batch; no limit if left out."""
    sample_timeout_s: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """Seconds that the loop waits for one mini-batch before the run fails; for ever if left out."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Where the run is kept."""

    name: str = attrs.field(validator=_is_folder)
    """Folder of the run; the name of the YAML file if left out."""
    dir: Path = attrs.field(factory=lambda: Path("runs").absolute())
    """Folder of all runs, relative to the working directory."""
    resume: Literal["off"] = attrs.field(
        default="off", metadata={HINT: "A run always starts anew; nothing is continued from a checkpoint."}
    )
    """`off`: the run starts anew, and what an earlier one left in its folder is kept under another name."""


@attrs.frozen(kw_only=True)
class Config:
    """Everything that a run is made from."""

    seed: int = attrs.field(default=0, validator=ge(0))
    """Seed of everything random."""
    task: Use
    """Where prompts and rewards come from."""
    model: Use
    """The policy that is trained."""
    rollout: Use
    """The engine that answers prompts, and how it samples."""
    algorithm: Algorithm = attrs.field(factory=Algorithm)
    """How answers become a loss."""
    optim: Optim = attrs.field(factory=Optim)
    """How the loss becomes an update."""
    trainer: TrainerConfig
    """How long the run is, and how its steps are cut."""
    replay: ReplayConfig = attrs.field(factory=ReplayConfig, validator=_holds_a_mini_batch)
    """The buffer between rollouts and learner."""
    run: RunConfig
    """Where the run is kept."""
    plugins: tuple[PluginEntry, ...] = ()
    """Everything else that the run does, in the order of the list."""

    def named(self) -> Iterator[tuple[str, Group, str]]:
        """Every class that the configuration names: its address, its group and its name."""
        for key, group in COMPONENTS.items():
            yield key, group, getattr(self, key).use
        for entry in self.plugins:
            yield f"plugins.{entry.name}", "plugins", entry.use


def load_config(*paths: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in YAML files, later ones on top, with `key=value` overrides.

    Raises `ConfigError` with every fault. Warns (`ConfigWarning`) without plugins, since nothing logs or syncs then.
    """
    if not paths:
        raise ConfigError("no configuration file was given")
    files = [Path(path) for path in paths]
    return _from_plain(read_files(files, overrides), files[0].stem)


def config_from_mapping(
    mapping: Mapping[str, object], *, name: str = "run", overrides: Iterable[str] = (), base: Path | None = None
) -> Config:
    """As `load_config`, from plain data; `name` is the run's unless it has one, files are relative to `base`."""
    return _from_plain(read_mapping(mapping, overrides, base or Path()), name)


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


def _named(data: Mapping[str, Any]) -> Iterator[tuple[str, Group, str]]:
    """What the data names, if it is well-formed so far."""
    plugins = data.get("plugins")
    items = [(key, group, data.get(key)) for key, group in COMPONENTS.items()]
    items += [(f"plugins.{name_of(item)}", "plugins", item) for item in (plugins if isinstance(plugins, list) else ())]
    for address, group, item in items:
        if isinstance(item, dict) and isinstance(item.get("use"), str):
            yield address, group, item["use"]


def _with_use(data: object, faults: Faults) -> dict[Any, Any] | None:
    """A copy of a mapping that has a `use`; None, with a fault, for everything else."""
    if data is None:
        faults.add("this item is empty; write a name, or a mapping with `use`")
    elif not isinstance(data, Mapping):
        faults.add(f"expected a name or a mapping with `use`, found {shown(data)}")
    elif odd := [key for key in data if not isinstance(key, str)]:
        faults.add(f"the names of options are text, found {', '.join(map(shown, odd))}")
    elif data.get("use") is None:
        faults.add(_without_use(data))
    else:
        return dict(data)
    return None


def _without_use(data: Mapping[object, object]) -> str:
    if len(data) == 1 and isinstance(next(iter(data.values())), Mapping):
        (use, options), *_ = data.items()
        inside = ", ".join(f"{key}: {value}" for key, value in options.items())  # type: ignore[attr-defined]
        return f"options stand beside `use`, not below the name; write {{use: {use}, {inside}}}"
    if isinstance(data.get("name"), str):
        return f"`name` only names the instance; what it is stands behind `use`, as in {{use: {data['name']}}}"
    return f"`use` is missing, which says what this is; found {', '.join(map(str, data)) or 'an empty mapping'}"


def _from_plain(data: dict[str, Any], name: str) -> Config:
    run = data.get("run")
    if run is None or (isinstance(run, dict) and run.get("name") is None):
        data["run"] = {**(run or {}), "name": name}
    faults = Faults(elsewhere=lambda: key_paths(Config) | option_paths(_named(data)))
    config = read(Config, data, faults)
    faults.raise_if_any()
    assert config is not None
    if not any(entry.enabled for entry in config.plugins):
        warnings.warn("no plugin is enabled: nothing logs, and nothing syncs weights", ConfigWarning, stacklevel=3)
    return config
