"""What plugins and the loop work on, as protocols: anything that has the methods will do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from hooktrainer.groups import Batch, FailureReason, Group, Lost, Prompt, Trajectory
from hooktrainer.record import Row

if TYPE_CHECKING:
    from torch import Tensor

    Weights: TypeAlias = Mapping[str, Tensor]


class StalenessPolicy(Protocol):
    """What the buffer asks the staleness plugin; pure functions of numbers (`hooktrainer.strategies`)."""

    @property
    def in_order(self) -> bool:
        """Whether sampling waits for the head of the line."""
        ...

    @property
    def requeues(self) -> bool:
        """Whether the prompt of an evicted group is dispatched again."""
        ...

    def evicts(self, staleness: int) -> bool:
        """Whether a finished group is thrown away when it is sampled; if S is, all above are."""
        ...

    def waits_for(self, staleness: int) -> bool:
        """Whether sampling blocks while an unfinished group has this staleness; if S does, all above do."""
        ...

    def budget(self, *, version: int, trained: int, outstanding: int, per_step: int) -> int | None:
        """Groups that may be dispatched now; None leaves dispatch to warm-up, iterations and replacements."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Owns the weights being trained."""

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make one optimizer update; returns metrics (numbers, lists, 0-d tensors or `Metric`s)."""
        ...

    def weights(self) -> Weights:
        """The full state: parameters and buffers by name. Not a copy."""
        ...


@runtime_checkable
class RolloutEngine(Protocol):
    """Answers prompts with its own copy of the published weights."""

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        ...

    def stage(self, weights: Weights, version: int) -> None:
        """Copy weights beside those in use. Raises without a trace in what is in use."""
        ...

    def flip(self) -> None:
        """Use the staged weights from now on; keep the old ones for `unflip`."""
        ...

    def unflip(self) -> None:
        """Undo the `flip` since the last `stage`, if there was one, and forget what is staged."""
        ...

    def start(self, buffer: ReplayBuffer) -> None:
        """Begin to serve what the buffer dispatches."""
        ...

    def pump(self) -> None:
        """Called by the loop before it blocks in sampling; an engine without threads works here."""
        ...

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One greedy answer to each prompt, scored, on the published weights; on the caller's thread."""
        ...

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        ...

    def close(self) -> None:
        """Stop and join every worker. May be called twice, and before `start`."""
        ...


@runtime_checkable
class ReplayBuffer(Protocol):
    """Groups between dispatch and learning: pending, running, then finished or failed."""

    @property
    def version(self) -> int:
        """The published version that new groups are stamped from."""
        ...

    def set_policy(self, policy: StalenessPolicy) -> None:
        """Use this staleness policy from now on."""
        ...

    def advance(self, version: int) -> None:
        """Move the published version; raises if it goes backwards."""
        ...

    def may_dispatch(self, wanted: int, per_step: int, *, makes_room: bool) -> int:
        """Groups that may be dispatched now: `wanted`, or what the strategy's budget says, within the capacity.

        With `makes_room`, room that a full buffer would make by throwing groups away counts.
        """
        ...

    def dispatch(self, prompts: Sequence[Prompt]) -> int:
        """Stamp prompts and make them pending; returns how many groups were thrown away to make room."""
        ...

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take pending groups to generate, oldest first; blocks until there is one; empty once closed."""
        ...

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group; never blocks. None or no answer at all is a failure."""
        ...

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated; it is replaced, or its error leaves `sample`."""
        ...

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Lost]], None]) -> Batch:
        """Take the oldest finished groups, evicting stale ones; blocks until `size` are there or no more can come.

        `refill(lost)` is called, without any lock held, to replace what was lost; also with nothing, to let an engine
        without threads work and a budget be looked at again.
        """
        ...

    def trainable(self, step: int) -> bool:
        """Whether a group is left that could be trained in `step`."""
        ...

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        ...

    def close(self) -> None:
        """Wake everyone who waits; nothing is dispatched or claimed any more."""
        ...


@runtime_checkable
class WeightTransport(Protocol):
    """Brings weights from the learner to engines, all or nothing."""

    def publish(self, weights: Weights, version: int, engines: Sequence[RolloutEngine]) -> Mapping[str, object]:
        """Stage on every engine, then flip every engine; on failure all are as before and `SyncError` is raised.

        Returns metrics.
        """
        ...


@runtime_checkable
class Sink(Protocol):
    """A place where rows go.

    A class that YAML names is called as `Class(directory, total_steps)`: the run directory, a `Path`, and the number of
    steps, None if the run lasts until its data ends. Whatever else the constructor takes must have a default. The name
    is a registered one, `package.module:Class`, or `file.py:Class` relative to the working directory.
    """

    def open(self) -> None:
        """Get ready; raises if rows could not be written later."""
        ...

    def write(self, step: int, row: Row) -> None:
        """Take one row; steps ascend."""
        ...

    def close(self) -> None:
        """Flush and let go. May be called twice, and before `open`."""
        ...


@runtime_checkable
class Task(Protocol):
    """Prompts with verifiable answers."""

    @property
    def alphabet(self) -> str:
        """Characters that prompts and answers are made of."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Characters of the longest prompt."""
        ...

    @property
    def size(self) -> int | None:
        """Prompts of one epoch; None if it has no end."""
        ...

    def train(self, seed: int) -> Iterator[tuple[str, str]]:
        """Prompts with what a verifier compares with: (text, truth); finite if the task is."""
        ...

    def heldout(self, size: int) -> Sequence[tuple[str, str]]:
        """Fixed prompts that `train` never gives."""
        ...

    def score(self, truth: str, answer: str) -> float:
        """Partial credit in [0, 1]; 1 only for an exact answer."""
        ...


@runtime_checkable
class PromptSource(Protocol):
    """The prompts of a run, tokenized: a training stream with its epochs joined, and a fixed held-out set."""

    @property
    def exhausted(self) -> bool:
        """Whether `take` has nothing more to give."""
        ...

    def take(self, count: int) -> Sequence[Prompt]:
        """The next `count` training prompts; fewer at the end of the data."""
        ...

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The first `count` held-out prompts; always the same ones."""
        ...
