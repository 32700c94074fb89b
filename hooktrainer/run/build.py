"""Build a trainer from a configuration: its learner, engine, buffer, sinks and run directory."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import numpy as np

from hooktrainer._util.clock import SystemClock
from hooktrainer.bus.binding import Ports
from hooktrainer.bus.plan_text import describe
from hooktrainer.checkpoint.run_state import RunPlace
from hooktrainer.config import Config
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.ports import KLControl, ModelExport, Task, Tokenizer
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import LocalOptions
from hooktrainer.run import record
from hooktrainer.run.composition import Composition, composition_of, require_runnable
from hooktrainer.run.directory import RunDirectory
from hooktrainer.run.export import EngineExport
from hooktrainer.run.limits import prompt_length
from hooktrainer.run.loading import as_plain, dump
from hooktrainer.run.resume import check_resume, previous_config, warn_of_changes
from hooktrainer.tasks.prompts import PromptLimit, TaskPrompts
from hooktrainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from hooktrainer.learner.distributed import Communicator
    from hooktrainer.learner.policy_gradient import PolicyGradientLearner
    from hooktrainer.run.ranks import Leader


def build_trainer(config: Config | Composition, leader: Leader | None = None) -> Trainer:
    """Return a trainer with everything that the configuration names. Raises `ConfigError` with every fault.

    `leader` has the other ranks of the learner, if there are any. The run directory is created last, so that a
    configuration with faults leaves no directory.
    """
    composition = config if isinstance(config, Composition) else composition_of(config)
    try:
        return _built(composition, leader)
    except ConfigError as error:
        error.revise(composition.origins.attributed)
        raise


def build_learner(composition: Composition, communicator: Communicator) -> PolicyGradientLearner:
    """Return the learner of one of several ranks."""
    set_up_libraries(composition.config)
    return _learner(composition, _Sizes.of(composition), communicator)[0]


def _built(composition: Composition, leader: Leader | None) -> Trainer:
    if composition.used:
        raise RuntimeError("a composition is for one run, since plugins have state; compose the configuration again")
    composition.used = True
    config, plan = composition.config, composition.plan
    _require_leader(leader, config.learner.ranks)
    require_runnable(composition)
    directory, resume = directory_of(config), config.run.resume
    started = record.started(directory, config.trainer.total_steps, resumes=resume != "off")
    place = RunPlace(
        directory=directory,
        resume=resume,
        name=config.run.name,
        id=started.id,
        start=len(started.starts),
        config=as_plain(config),
        seed=config.seed,
    )
    check_resume(resume)
    trainer = Trainer(plan, _ports(composition, leader), config.trainer, place)
    if leader is not None:
        leader.attend(trainer)
    files = {
        "config.yaml": dump(config),
        "plan.txt": describe(plan),
        record.FILE: started.text(),
    }
    try:
        locked = RunDirectory(directory, files, resume)
    except ConfigError:
        trainer.ports.engine.close()
        raise
    before = None if resume == "off" else previous_config(directory, resume)
    trainer.at_start(locked.renew)
    trainer.at_start(lambda: record.record_resume(directory, trainer.ports.buffer.version))
    trainer.at_start(partial(warn_of_changes, before, files["config.yaml"]))
    trainer.at_end(lambda: record.record_end(directory, trainer.result))
    trainer.at_end(lambda: None if trainer.ports.buffer.version else locked.mark_as_empty())
    trainer.at_end(locked.release)
    return trainer


def _require_leader(leader: Leader | None, ranks: int) -> None:
    if leader is None and ranks > 1:
        fault = f"{ranks} ranks are started by the command `hooktrainer fit`, not by `build_trainer`"
        raise ConfigError([Fault("learner.ranks", fault)])


def directory_of(config: Config) -> Path:
    """Return the absolute path of the run directory, since user code may change the working directory."""
    return (config.run.dir / config.run.name).absolute()


@attrs.frozen
class _Sizes:
    """The tokenizer of a run, and the sizes that its policy is built with."""

    tokenizer: Tokenizer
    limit: PromptLimit
    max_length: int
    """Tokens of the longest prompt with the longest answer."""
    seed: int

    @classmethod
    def of(cls, composition: Composition) -> Self:
        task, rollout = composition.task, composition.rollout
        limit = PromptLimit(prompt_length(rollout, composition.model, task), rollout.overlong_prompts)
        max_length = limit.max_length + rollout.max_response_length
        return cls(composition.model.tokenizer(task), limit, max_length, composition.config.seed)

    @property
    def options(self) -> Mapping[str, int]:
        """Options of `build` of a model."""
        return {"vocab_size": self.tokenizer.vocab_size, "max_length": self.max_length, "seed": self.seed}


def _ports(composition: Composition, leader: Leader | None) -> Ports:
    from hooktrainer.models.precision import in_single_precision
    from hooktrainer.weight_sync.same_host import SameHostTransport

    config, task, rollout = composition.config, composition.task, composition.rollout
    set_up_libraries(config)
    sizes = _Sizes.of(composition)
    prompts = _prompts(config, task, sizes)
    sampled = composition.model if isinstance(rollout, LocalOptions) else _on_cpu(composition.model)
    generator = GeneratorConfig(
        policy=partial(in_single_precision, partial(sampled.build, **sizes.options)),
        tokenizer=sizes.tokenizer,
        task=task,
        seed=config.seed,
        reward=config.reward,
        max_length=sizes.max_length,
        save=getattr(composition.model, "save", None),
    )
    own, policy = _learner(composition, sizes, None if leader is None else leader.communicator)
    learner = own if leader is None else leader.leading(own)
    engine = rollout.build(generator)
    return Ports(
        learner=learner,
        engine=engine,
        buffer=GroupBuffer(config.replay),
        transport=SameHostTransport(),
        prompts=prompts,
        clock=SystemClock(),
        extra={KLControl: learner, ModelExport: EngineExport(composition, sizes.tokenizer, engine, policy)},
    )


def _on_cpu(model: Any) -> Any:
    """Return the options of the model for an engine in other processes, which do not share the GPU of the learner."""
    return attrs.evolve(model, device="cpu") if attrs.has(type(model)) and hasattr(model, "device") else model


def _learner(
    composition: Composition, sizes: _Sizes, communicator: Communicator | None
) -> tuple[PolicyGradientLearner, nn.Module]:
    """Return the learner and the policy that it trains."""
    from hooktrainer.learner.policy_gradient import PolicyGradientLearner
    from hooktrainer.models.vocabulary import check_vocabulary

    config, rollout = composition.config, composition.rollout
    policy = composition.model.build(**sizes.options)
    check_vocabulary(policy, sizes.tokenizer.vocab_size)
    learner = PolicyGradientLearner(
        policy,
        algorithm=config.algorithm,
        optim=config.optim,
        critic=config.critic,
        temperature=rollout.temperature,
        pad_id=sizes.tokenizer.pad_id,
        max_response_length=rollout.max_response_length,
        iterations_per_step=config.trainer.parameter_sync_step,
        communicator=communicator,
    )
    return learner, policy


def _prompts(config: Config, task: Task, sizes: _Sizes) -> TaskPrompts:
    """Return the prompts of the run. Raises `ConfigError` unless there is one mini-batch."""
    try:
        epochs = config.trainer.total_epochs
        prompts = TaskPrompts(task, sizes.tokenizer, seed=sizes.seed, total_epochs=epochs, limit=sizes.limit)
        prompts.require(config.trainer.ppo_mini_batch_size)
    except ConfigError as error:
        error.place("task")
        raise
    return prompts


def set_up_libraries(config: Config) -> None:
    """Set the threads of torch, and seed the global generators, which tasks and plugins may use."""
    import torch

    if config.trainer.intra_op_threads is not None:
        torch.set_num_threads(config.trainer.intra_op_threads)
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002 (the global generator, which tasks may use)
    torch.manual_seed(config.seed)
