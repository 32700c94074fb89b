"""A small model and task, and a group source that records the calls of engines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hooktrainer import ports
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.policy import full_state
from hooktrainer.ports import FailureReason, Group, Trajectory
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.score_options import ScoreOptions
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.prompts import TaskPrompts

TASK = Addition()
TOKENIZER = CharTokenizer(TASK.alphabet)
LENGTH = 6
SOON_S = 20
"""Limit of a time that does not depend on a timeout: a hang takes longer, also on a busy machine."""
PATIENCE_S = 120
"""Seconds after which a wait of a test fails: a busy machine takes long to start worker processes."""


def generator_config(
    policy: Callable[[], nn.Module] | None = None, task: ports.Task = TASK, seed: int = 0, **reward: Any
) -> GeneratorConfig:
    """Return what an engine for the task of these tests is built from."""
    return GeneratorConfig(
        policy=policy or build,
        tokenizer=TOKENIZER,
        task=task,
        seed=seed,
        reward=ScoreOptions(**reward),
        max_length=TASK.longest_prompt + LENGTH,
    )


def build(scale: float = 3.0, seed: int = 0) -> nn.Module:
    """Return a model whose distribution is far from uniform, so that a wrong temperature, version or cache shows."""
    model = DecoderOptions(layers=2, width=16, heads=2).build(
        vocab_size=TOKENIZER.vocab_size, max_length=TASK.longest_prompt + LENGTH, seed=seed
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


class Versioned(nn.Module):
    """A policy whose weights all equal the number of their version. If they differ, its logits are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(10_000)) for _ in range(3))

    @classmethod
    def state(cls, version: int) -> dict[str, Tensor]:
        return {name: torch.full((10_000,), float(version)) for name in "abc"}

    def new_cache(self, rows: int, length: int) -> Versioned:
        return self

    def append(self, other: Versioned, rows: Sequence[int]) -> None: ...

    def keep(self, rows: Sequence[int]) -> None: ...

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: Versioned) -> Tensor:
        return self.decode(tokens, cache)

    def decode(self, tokens: Tensor, cache: Versioned) -> Tensor:
        extremes = torch.stack([extreme for weight in (self.a, self.b, self.c) for extreme in weight.aminmax()])
        torn = bool((extremes != extremes[0]).any())
        return torch.full((len(tokens), TOKENIZER.vocab_size), torch.nan if torn else 0.0)


def groups(count: int) -> list[Group]:
    """Return groups with prompts of several lengths."""
    prompts = TaskPrompts(TASK, TOKENIZER, seed=0).take(count)
    assert count < 5 or len({len(prompt.tokens) for prompt in prompts}) > 1
    return [Group(number=number, stamp=1, prompt=prompt) for number, prompt in enumerate(prompts)]


def publish(engine: ports.RolloutEngine, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
    engine.stage(full_state(build()) if weights is None else weights, version)
    switch(engine, version)


def switch(engine: ports.RolloutEngine, version: int) -> None:
    """Use the staged weights."""
    if isinstance(engine, ports.ReversibleHolder):
        engine.flip()
    else:
        assert isinstance(engine, ports.ReloadingHolder)
        engine.pause()
        engine.load(version)
        engine.resume()


def discard(engine: ports.RolloutEngine) -> None:
    """Discard weights that were staged and are not in use."""
    if isinstance(engine, ports.ReversibleHolder):
        engine.unflip()
    else:
        engine.resume()


def versions_of(answers: Sequence[Trajectory]) -> set[int]:
    return {version for answer in answers for version in answer.versions.tolist()}


class Queue:
    """The part of a replay buffer that engines use; records which groups are claimed, finished and failed."""

    def __init__(self, pending: Sequence[Group] = ()) -> None:
        self.pending = list(pending)
        self.claimed: list[int] = []
        self.finished: dict[int, Sequence[Trajectory]] = {}
        self.failed: dict[int, tuple[BaseException, FailureReason]] = {}
        self.closed = False
        self.changed = threading.Condition()

    def dispatch(self, more: Sequence[Group]) -> None:
        with self.changed:
            self.pending += more
            self.changed.notify_all()

    def count_pending(self, block: bool = False) -> int:
        with self.changed:
            if block:
                self.changed.wait_for(lambda: self.pending or self.closed)
            return 0 if self.closed else len(self.pending)

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        with self.changed:
            if not self.count_pending(block):
                return []
            taken, self.pending = self.pending[:limit], self.pending[limit:]
            self.claimed += [group.number for group in taken]
            self.changed.notify_all()
            return taken

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        with self.changed:
            assert group.number not in self.finished.keys() | self.failed.keys()
            self.finished[group.number] = trajectories
            self.changed.notify_all()

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        with self.changed:
            assert group.number not in self.finished.keys() | self.failed.keys()
            self.failed[group.number] = (error, reason)
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until this many groups are finished or failed."""
        self.wait_until(lambda: len(self.finished) + len(self.failed) >= count)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.claimed, self.finished.keys(), self.failed)
