"""From the typed configuration to a trainer: the only place that wires."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hooktrainer._util.clock import SystemClock
from hooktrainer.bus.binding import Ports
from hooktrainer.bus.plan_text import describe
from hooktrainer.checkpoint.run_state import RunPlace
from hooktrainer.checkpoint.store import has_checkpoint
from hooktrainer.config import Config
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.plugin import port_fields
from hooktrainer.ports import KLControl
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.run import registry
from hooktrainer.run.composition import Parts, build_parts
from hooktrainer.run.directory import RunDirectory
from hooktrainer.run.loading import dump
from hooktrainer.run.resume import config_before, say_changes
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.tokenizer import CharTokenizer
from hooktrainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hooktrainer.ports import Sink


def build_trainer(config: Config) -> Trainer:
    """Everything that the configuration names, wired and ready to fit. Raises `ConfigError` with every fault.

    The run directory is made last, once everything else was found right.
    """
    parts = build_parts(config)
    parts.plan.require_sync()
    place = RunPlace(directory=config.run.dir / config.run.name, resume=config.run.resume)
    _check_resume(place)
    trainer = Trainer(parts.plan.plugins, _ports(config, parts), config.trainer, place)
    files = {"config.yaml": dump(config), "plan.txt": describe(trainer.bus.plan)}
    try:
        directory = RunDirectory(config.run.dir / config.run.name, files, place.resume)
    except ConfigError:
        trainer.ports.engine.close()
        raise
    before = None if place.resume == "off" else config_before(place.directory, place.resume)
    trainer.at_start(directory.renew)
    trainer.at_start(partial(say_changes, before, files["config.yaml"]))
    trainer.at_end(directory.release)
    return trainer


def _check_resume(place: RunPlace) -> None:
    """Whether there is something where a path points; a checkpoint is read later, by the plugin that does that."""
    if isinstance(place.resume, Path) and not has_checkpoint(place.resume):
        found = "no checkpoint" if place.resume.exists() else "nothing"
        text = f"there is {found} at {place.resume}; it is off, auto, or the path of a checkpoint or of a run"
        hint = did_you_mean(place.resume.name, ("off", "auto"))
        raise ConfigError([Fault("run.resume", f"{text}.{hint}")])


def _ports(config: Config, parts: Parts) -> Ports:
    import torch

    from hooktrainer.learner.policy_gradient import PolicyGradientLearner
    from hooktrainer.weight_sync.same_host import SameHostTransport

    _seed(config.seed)
    if config.trainer.intra_op_threads is not None:
        torch.set_num_threads(config.trainer.intra_op_threads)
    task, rollout = parts.task, parts.rollout
    tokenizer = CharTokenizer(task.alphabet)
    policy = partial(
        parts.model.build,
        vocab_size=tokenizer.vocab_size,
        max_length=task.longest_prompt + rollout.max_response_length,
        seed=config.seed,
    )
    learner = PolicyGradientLearner(
        policy(),
        algorithm=config.algorithm,
        optim=config.optim,
        critic=config.critic,
        temperature=rollout.temperature,
        pad_id=tokenizer.pad_id,
        max_response_length=rollout.max_response_length,
        iterations_per_step=config.trainer.parameter_sync_step,
    )
    return Ports(
        learner=learner,
        engine=rollout.build(policy=policy, tokenizer=tokenizer, task=task, seed=config.seed),
        buffer=GroupBuffer(config.replay),
        transport=SameHostTransport(),
        prompts=TaskPrompts(task, tokenizer, seed=config.seed, total_epochs=config.trainer.total_epochs),
        clock=SystemClock(),
        sinks=dict(_sinks(config, parts)),
        extra={KLControl: learner},
    )


def _seed(seed: int) -> None:
    """Seed the global generators: nothing here draws from them, but tasks and plugins of others may."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (whoever draws from it)
    torch.manual_seed(seed)


def _sinks(config: Config, parts: Parts) -> Iterator[tuple[str, Sink]]:
    """The sinks that any plugin names."""
    directory = config.run.dir / config.run.name
    names = {
        name
        for entry in parts.plan.plugins
        for field in port_fields(type(entry.plugin), named=True)
        for name in getattr(entry.plugin, field.name)
    }
    for name in sorted(names):
        yield name, registry.resolve("sinks", name)(directory, config.trainer.total_steps)
