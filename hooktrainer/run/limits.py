"""Refuse sizes that the machine cannot hold, before anything is built: memory, threads, and updates of a step.

Estimates are lower bounds, so that no run is refused that could start.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from hooktrainer._util.machine import memory_limit, thread_limit
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.config.faults import short
from hooktrainer.config.fields import default_of, init_fields, option_name
from hooktrainer.config.sections import TrainerConfig
from hooktrainer.errors import Fault
from hooktrainer.learner.options import CriticOptions, OptimOptions
from hooktrainer.models.options import CharacterModel
from hooktrainer.models.size import ModelSize
from hooktrainer.ports import CharacterTask
from hooktrainer.rollout.options import SamplingOptions

DEFAULT_PROMPT_LENGTH: Final = 512
"""Tokens of a prompt, unless the model reads characters of a task with a longest prompt."""
MAX_UPDATES: Final = 1_000_000
"""Optimizer updates of one step; a step takes days before it writes its first row with more."""
WORKERS_PER_CORE: Final = 16
MIN_WORKERS: Final = 64
"""Workers that are allowed on any machine."""
_BYTES: Final = 4
"""Bytes of a 32-bit value."""
_MOST: Final = 10**30
"""Larger numbers are shown as this one."""
_BYTES_PER_ANSWER: Final = 500
_BYTES_PER_PROMPT: Final = 300
_SHORTEST: Final = 2
"""Tokens of the shortest prompt and answer together."""


@attrs.frozen(kw_only=True)
class Sizes:
    """The sections of a configuration that set sizes."""

    task: Any
    model: Any
    rollout: Any
    trainer: TrainerConfig
    algorithm: AlgorithmOptions
    critic: CriticOptions
    optim: OptimOptions

    @property
    def workers(self) -> int:
        """Rollout workers on this machine; 1 for an engine without this option."""
        return int(getattr(self.rollout, "local_workers", getattr(self.rollout, "workers", 1)))

    def memory(self) -> Mapping[str, int]:
        """Return the bytes that each part of the run requires at least."""
        longest: int = prompt_length(self.rollout, self.model, self.task) + self.rollout.max_response_length
        size = ModelSize(parameters=0)
        if hasattr(self.model, "size"):  # a model of the user may have no estimate
            size = self.model.size(vocab_size=self.model.tokenizer(self.task).vocab_size, max_length=longest)
        groups = self.trainer.ppo_mini_batch_size * (1 + self.trainer.num_warmup_batches)
        rows: int = self.rollout.slots if self.rollout.batching == "continuous" else self.rollout.n
        tokens = max(self._answers_of_a_pass() * _SHORTEST, longest)
        return {
            "the model with its gradient, optimizer state and copies": _BYTES * size.parameters * self._copies(),
            "key-value caches": self.workers * rows * longest * size.cache_bytes_per_token,
            "prompts and answers": groups * (_BYTES_PER_PROMPT + self.rollout.n * _BYTES_PER_ANSWER),
            "a training pass": tokens * size.activation_bytes_per_token + longest**2 * size.activation_bytes_per_pair,
            "worker processes": self.workers * getattr(self.rollout, "bytes_per_worker", 0),
        }

    def _copies(self) -> int:
        """Return how often the weights are held: by the learner, its optimizer, its other models and the engine."""
        trained, copies_of_engine = 4, 2  # weights, gradient and two moments of Adam
        reference = 1 if self.algorithm.kl_coeff else 0
        return trained * (2 if self.critic.use == "model" else 1) + copies_of_engine + reference

    def _answers_of_a_pass(self) -> int:
        answers: int = self.trainer.ppo_mini_batch_size * self.rollout.n
        if self.optim.micro_batch_tokens is not None:
            return max(1, min(answers, self.optim.micro_batch_tokens // _SHORTEST))
        return min(answers, self.optim.micro_batch_size or answers)


def prompt_length(rollout: SamplingOptions, model: Any, task: Any) -> int:
    """Return the largest number of tokens of a prompt, of the options or by default."""
    if rollout.max_prompt_length is not None:
        return rollout.max_prompt_length
    return int(task.longest_prompt) if isinstance(model, CharacterModel) else DEFAULT_PROMPT_LENGTH


def limit_faults(sizes: Sizes) -> Iterator[Fault]:
    """Yield the faults of sizes above a limit, each at the option that exceeds it."""
    yield from _update_faults(sizes)
    yield from list(_task_faults(sizes.model, sizes.task)) or list(_worker_faults(sizes)) or _memory_faults(sizes)


def _task_faults(model: Any, task: Any) -> Iterator[Fault]:
    if not isinstance(model, CharacterModel):
        return
    if not isinstance(task, CharacterTask):
        text = (
            f"{type(task).__name__} has no `alphabet` and `longest_prompt`, which a model that reads characters "
            "requires. Use a model with its own tokenizer, such as `model: {use: huggingface, path: ...}`"
        )
        yield Fault("task", text)
        return
    if not isinstance(task.alphabet, str):
        yield Fault("task", f"its alphabet is of type {type(task.alphabet).__name__}, expected a text of characters")
    elif not task.alphabet:
        yield Fault("task", "its alphabet is empty, expected the characters of prompts and answers")
    elif repeated := [char for char, count in Counter(task.alphabet).items() if count > 1]:
        yield Fault("task", f"its alphabet has {', '.join(map(repr, repeated))} twice; each has one token")
    longest: object = task.longest_prompt
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
        yield Fault("task", f"its longest_prompt is {short(longest)}, expected a number of tokens of at least 1")


def _update_faults(sizes: Sizes) -> Iterator[Fault]:
    updates = sizes.trainer.parameter_sync_step * sizes.algorithm.ppo_epochs
    if updates > MAX_UPDATES:
        options = {"trainer": "parameter_sync_step", "algorithm": "ppo_epochs"}
        section = max(options, key=lambda section: getattr(getattr(sizes, section), options[section]))
        value = getattr(getattr(sizes, section), options[section])
        text = f"{value} gives {min(updates, _MOST)} optimizer updates per step; at most {MAX_UPDATES} are allowed"
        yield Fault(f"{section}.{options[section]}", f"{text}, since metrics and checkpoints follow at its end")


def _memory_faults(sizes: Sizes) -> Iterator[Fault]:
    needs = sizes.memory()
    total, limit = sum(needs.values()), memory_limit()
    if total > limit:
        parts = ", ".join(f"{_readable(need)} for {part}" for part, need in needs.items() if need * 100 > total)
        address, value = _cause(sizes)
        text = f"{value}requires at least {_readable(total)} of memory ({parts})"
        yield Fault(address, f"{text}; this process may use {_readable(limit)}")


def _worker_faults(sizes: Sizes) -> Iterator[Fault]:
    cores = os.cpu_count() or 1
    sensible = max(MIN_WORKERS, WORKERS_PER_CORE * cores)
    if sizes.workers > sensible:
        text = f"{sizes.workers} workers are too many for {cores} cores; at most {sensible} are allowed"
        yield Fault("rollout.workers", text)
        return
    threads, limit = sizes.workers * int(getattr(sizes.rollout, "intra_op_threads", 1)), thread_limit()
    if limit is not None and threads > limit:
        text = f"{threads} threads in {sizes.workers} workers exceed the limit of this process, {limit} threads"
        yield Fault("rollout.intra_op_threads", text)


def _cause(sizes: Sizes) -> tuple[str, str]:
    """Return the address and the value of the option whose default reduces the required memory most."""
    found, least = ("model", ""), sum(sizes.memory().values())
    for section in attrs.fields(Sizes):
        options = getattr(sizes, section.name)
        for field in init_fields(type(options)) if attrs.has(type(options)) else ():
            value, default = getattr(options, field.name), default_of(field)
            if type(value) is not int or value == default:
                continue
            changed = copy.copy(options)
            object.__setattr__(changed, field.name, 1 if default is attrs.NOTHING else default)
            required = sum(attrs.evolve(sizes, **{section.name: changed}).memory().values())
            if required < least:
                found, least = (f"{section.name}.{option_name(field)}", f"{value} "), required
    return found


def _readable(total: int) -> str:
    count: float = min(total, _MOST)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} PiB"
