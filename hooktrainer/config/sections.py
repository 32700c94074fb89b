"""The sections of a configuration: one frozen class for each, and the checks between them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import attrs
from attrs.validators import ge, le, lt, optional

from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.config.conversion import HINT
from hooktrainer.config.entries import Named, PluginEntry, Use
from hooktrainer.config.fields import field_type
from hooktrainer.config.short_forms import COMPONENTS
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.learner.options import CriticOptions, OptimOptions
from hooktrainer.replay.options import ReplayOptions


def _is_folder(_instance: object, _attribute: object, value: str) -> None:
    if Path(value).name != value or value in {"", ".."} or "\0" in value:
        raise ValueError(f"a run is kept in one folder, so its name is not empty and has no '/'; found {value!r}")


def _is_whole_step(trainer: TrainerConfig, _attribute: object, value: int) -> None:
    updates, mini = trainer.parameter_sync_step, trainer.ppo_mini_batch_size
    if value != updates * mini:
        raise ValueError(
            f"{value} is not parameter_sync_step x ppo_mini_batch_size = {updates} x {mini} = {updates * mini}"
        )


def _holds_a_mini_batch(config: Config, _attribute: object, replay: ReplayOptions) -> None:
    mini = config.trainer.ppo_mini_batch_size
    if replay.capacity is not None and replay.capacity < mini:
        raise ConfigError([Fault("capacity", f"{replay.capacity} groups cannot hold a mini-batch of {mini}")])


def _has_its_critic(config: Config, _attribute: object, algorithm: AlgorithmOptions) -> None:
    if algorithm.wants_a_critic and config.critic.use == "none":
        text = f"{algorithm.adv_estimator} needs a critic, and critic.use is none; take value_head or model"
        raise ConfigError([Fault("adv_estimator", text)])


def _has_a_use(config: Config, _attribute: object, critic: CriticOptions) -> None:
    if config.algorithm.wants_a_critic is False and critic.use != "none":
        name = config.algorithm.adv_estimator
        text = f"'{critic.use}' would be trained for nothing: algorithm.adv_estimator = {name} asks for no values"
        raise ConfigError([Fault("use", text)])


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """How long the run is, and how its steps are cut."""

    total_steps: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Steps, each with one weight sync; until the data ends if left out, which it then must."""
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
    intra_op_threads: int | None = attrs.field(default=None, validator=optional([ge(1), le(1024)]))
    """Threads of one torch operation; torch decides if left out."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Where the run is kept."""

    name: str = attrs.field(validator=_is_folder)
    """Folder of the run; the name of the YAML file if left out."""
    dir: Path = attrs.field(factory=lambda: Path("runs").absolute())
    """Folder of all runs, relative to the working directory."""
    resume: Literal["off", "auto"] | Path = attrs.field(
        default="off", metadata={HINT: "It is off, auto, or the path of a checkpoint or of a run that has some."}
    )
    """`off`: the run starts anew, and what an earlier one left in its folder is kept under another name. `auto`: it
    goes on from the newest checkpoint in its folder, and starts anew if there is none. A path: it goes on from there.
    """


@attrs.frozen(kw_only=True)
class Config:
    """Everything that a run is made from."""

    seed: int = attrs.field(default=0, validator=[ge(0), lt(2**63)])
    """Seed of everything random."""
    task: Use
    """Where prompts and rewards come from."""
    model: Use
    """The policy that is trained."""
    rollout: Use
    """The engine that answers prompts, and how it samples."""
    algorithm: AlgorithmOptions = attrs.field(factory=AlgorithmOptions, validator=_has_its_critic)
    """How answers become a loss."""
    optim: OptimOptions = attrs.field(factory=OptimOptions)
    """How the loss becomes an update."""
    critic: CriticOptions = attrs.field(factory=CriticOptions, validator=_has_a_use)
    """What estimates returns, for the algorithms that need it."""
    trainer: TrainerConfig
    """How long the run is, and how its steps are cut."""
    replay: ReplayOptions = attrs.field(factory=ReplayOptions, validator=_holds_a_mini_batch)
    """The buffer between rollouts and learner."""
    run: RunConfig
    """Where the run is kept."""
    plugins: tuple[PluginEntry, ...] = ()
    """Everything else that the run does, in the order of the list."""

    @property
    def named(self) -> Named:
        """All that it names."""
        return Named({key: getattr(self, key) for key in COMPONENTS}, self.plugins)


def section_classes() -> dict[str, type]:
    """The sections that are one class each whatever is named, by key."""
    types = {field.name: field_type(Config, field) for field in attrs.fields(Config)}
    return {key: cls for key, cls in types.items() if attrs.has(cls) and cls is not Use}


SECTIONS: Final = tuple(field.name for field in attrs.fields(Config))
"""In the order in which they are written, and their faults shown."""
