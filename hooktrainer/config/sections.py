"""The sections of a configuration, one frozen class each, and the checks between them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import attrs
from attrs.validators import ge, le, lt, optional

from hooktrainer._util.registry import HINT
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.config.entries import PluginEntry, Use
from hooktrainer.config.faults import short
from hooktrainer.config.fields import DEFAULT, field_type, init_fields
from hooktrainer.config.file_names import run_name_fault
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.learner.options import CriticOptions, LearnerOptions, OptimOptions
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.rollout.score_options import ScoreOptions


def _is_folder(_instance: object, _attribute: object, value: str) -> None:
    if fault := run_name_fault(value):
        raise ValueError(f"{fault}; found {short(value)}")


def _is_whole_step(trainer: TrainerConfig, _attribute: object, value: int) -> None:
    updates, mini = trainer.parameter_sync_step, trainer.ppo_mini_batch_size
    if value != updates * mini:
        text = f"{value} is not parameter_sync_step x ppo_mini_batch_size = {updates} x {mini} = {updates * mini}"
        whole = value >= mini and value % mini == 0
        raise ValueError(f"{text}. Set parameter_sync_step: {value // mini}" if whole else text)


def _holds_a_mini_batch(config: Config, _attribute: object, replay: ReplayOptions) -> None:
    mini = config.trainer.ppo_mini_batch_size
    if replay.capacity is not None and replay.capacity < mini:
        raise ConfigError([Fault("capacity", f"{replay.capacity} groups cannot hold a mini-batch of {mini}")])


def _has_its_critic(config: Config, _attribute: object, algorithm: AlgorithmOptions) -> None:
    if algorithm.needs_a_critic and config.critic.use == "none":
        text = f"{algorithm.adv_estimator} needs a critic, and critic.use is none; set value_head or model"
        raise ConfigError([Fault("adv_estimator", text)])


def _has_a_use(config: Config, _attribute: object, critic: CriticOptions) -> None:
    if config.algorithm.needs_a_critic is False and critic.use != "none":
        name = config.algorithm.adv_estimator
        text = f"'{critic.use}' has no effect: algorithm.adv_estimator = {name} takes no values of a critic"
        raise ConfigError([Fault("use", text)])


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """The length of the run, and how its steps divide into updates."""

    total_steps: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Steps, each with one weight sync. If left out, the run ends with its data, which must then be finite."""
    total_epochs: int = attrs.field(default=1, validator=ge(1))
    """Passes over the data; the run ends with the last one if that is before `total_steps`."""
    train_batch_size: int = attrs.field(validator=[ge(1), _is_whole_step])
    """Prompts of one step: `parameter_sync_step` x `ppo_mini_batch_size`."""
    ppo_mini_batch_size: int = attrs.field(validator=ge(1))
    """Prompts of one update."""
    parameter_sync_step: int = attrs.field(default=1, validator=ge(1))
    """P, the updates per step, between two weight syncs."""
    num_warmup_batches: int = attrs.field(default=0, validator=ge(0))
    """W, the mini-batches dispatched before the first update; with 0, generation and training do not overlap."""
    intra_op_threads: int | None = attrs.field(default=None, validator=optional([ge(1), le(1024)]))
    """CPU threads that torch uses for one operation in this process (`torch.set_num_threads`); the default of torch if
    left out. A small number leaves cores to generation in other threads or processes."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """The directory of the run, and whether it resumes."""

    name: str = attrs.field(validator=_is_folder, metadata={DEFAULT: "the name of the first YAML file"})
    """Name of the run's directory."""
    dir: Path = attrs.field(factory=lambda: Path("runs").absolute())
    """Directory of all runs, relative to the working directory."""
    resume: Literal["off", "auto"] | Path = attrs.field(
        default="off", metadata={HINT: "It is off, auto, or the path of a checkpoint or of a run with checkpoints."}
    )
    """`off` starts a new run, and renames the directory of an earlier one. `auto` resumes from the newest checkpoint in
    the directory, and starts a new run if there is none. A path resumes from that checkpoint or run."""


class Handoff:
    """Holds an object until one thread takes it; a copy is empty."""

    def __init__(self) -> None:
        self._held: list[object] = []

    def put(self, held: object) -> None:
        """Hold an object."""
        self._held = [held]

    def take(self) -> object | None:
        """Return the object and forget it; None if there is none."""
        try:
            return self._held.pop()
        except IndexError:
            return None

    def __reduce__(self) -> tuple[type[Handoff], tuple[()]]:
        return Handoff, ()


@attrs.frozen(kw_only=True)
class Config:
    """The configuration of a run."""

    seed: int = attrs.field(default=0, validator=[ge(0), lt(2**63)])
    """Seed of all random generators."""
    task: Use
    """Prompts and their rewards."""
    model: Use
    """The policy to train."""
    rollout: Use
    """The engine that generates answers, and how it samples."""
    algorithm: AlgorithmOptions = attrs.field(factory=AlgorithmOptions, validator=_has_its_critic)
    """How answers become a loss."""
    optim: OptimOptions = attrs.field(factory=OptimOptions)
    """How the loss becomes an update."""
    critic: CriticOptions = attrs.field(factory=CriticOptions, validator=_has_a_use)
    """The estimate of returns, for the algorithms that need one."""
    learner: LearnerOptions = attrs.field(factory=LearnerOptions)
    """The processes that share each update."""
    trainer: TrainerConfig
    """The length of the run, and how its steps divide into updates."""
    reward: ScoreOptions = attrs.field(factory=ScoreOptions)
    """The threads that score answers."""
    replay: ReplayOptions = attrs.field(factory=ReplayOptions, validator=_holds_a_mini_batch)
    """The buffer between rollouts and learner."""
    run: RunConfig
    """The directory of the run, and whether it resumes."""
    plugins: tuple[PluginEntry, ...] = ()
    """Everything else that the run does; the order breaks ties of priority."""
    composed: Handoff = attrs.field(factory=Handoff, init=False, eq=False, repr=False)
    """The composition that was built to check this configuration, for the first trainer."""


def section_classes() -> dict[str, type]:
    """Return the class of every section whose options do not depend on `use`, by key."""
    types = {field.name: field_type(Config, field) for field in init_fields(Config)}
    return {key: cls for key, cls in types.items() if attrs.has(cls) and cls is not Use}


SECTIONS: Final = tuple(field.name for field in init_fields(Config))
"""The sections in the order of `dump` and of faults."""
COMPONENTS: Final = ("task", "model", "rollout")
"""The sections that name one class each with `use`."""
