"""What plugins and the loop work on, as protocols: anything that has the methods will do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hooktrainer.groups import Batch, FailureReason, Floats, Group, Lost, Prompt, Tokens, Trajectory
from hooktrainer.run_ports import RunState as RunState  # noqa: PLC0414 (public here)
from hooktrainer.run_ports import Sink as Sink  # noqa: PLC0414 (public here)
from hooktrainer.sync_ports import WeightHolder as WeightHolder  # noqa: PLC0414 (public here)
from hooktrainer.sync_ports import WeightTransport as WeightTransport  # noqa: PLC0414 (public here)

if TYPE_CHECKING:
    from hooktrainer.sync_ports import Weights as Weights  # noqa: PLC0414 (public here)


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
        """Groups that may be dispatched now; None leaves dispatch to warm-up, iterations and replacements.

        `per_step` is the groups of a step; after a resume with another one, `trained` is as if it had always been so.
        """
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

    skips_nonfinite: bool
    """Whether an update whose loss or gradient is not finite is left out and counted in `actor/skipped_updates`,
    instead of raising `NonFiniteError`; False unless a plugin sets it."""

    def start_step(self, step: int) -> None:
        """Called before the first update of a step: the weights of now are the proximal policy until the next call."""
        ...

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make one optimizer update; returns metrics (numbers, lists, 0-d tensors or `Metric`s)."""
        ...

    def weights(self) -> Weights:
        """What engines get: all parameters and buffers by name, adapters merged into their base. Not a copy.

        A learner that trains other tensors than these, such as adapters, also has `trainable() -> Weights`: those that
        the optimizer changes. A sync that brings nothing new although they moved is refused.
        """
        ...

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), at sampling temperature.

        The canary: engines have to say the same after each sync.
        """
        ...

    def state_dict(self) -> Mapping[str, object]:
        """All that the next update depends on: nested numbers, text, lists, dicts, tensors, arrays. Not a copy."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Raises `CheckpointError`, and changes nothing, if it is another model's."""
        ...


@runtime_checkable
class KLControl(Protocol):
    """Says how much the divergence from the reference model weighs."""

    kl_coeff: float
    """From the next update on; what is 0 at first stays 0, since there is no reference model then."""


@runtime_checkable
class RolloutEngine(WeightHolder, Protocol):
    """Answers prompts with its own copy of the published weights."""

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


class GroupSource(Protocol):
    """The side of a replay buffer that engines see."""

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take pending groups to generate, oldest first; blocks until there is one; empty once closed."""
        ...

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group; never blocks. None or no answer at all is a failure."""
        ...

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated; it is replaced, or its error leaves `sample`."""
        ...

    def close(self) -> None:
        """Wake everyone who waits; nothing is dispatched or claimed any more."""
        ...


@runtime_checkable
class ReplayBuffer(GroupSource, Protocol):
    """Groups between dispatch and learning: pending, running, then finished or failed."""

    @property
    def version(self) -> int:
        """The published version that new groups are stamped from."""
        ...

    def set_policy(self, policy: StalenessPolicy) -> None:
        """Use this staleness policy from now on."""
        ...

    def set_filter(self, wanted: Callable[[Group], bool]) -> None:
        """Replace each group of which this is False when it is finished; called under the lock, by any thread."""
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

    def state_dict(self) -> Mapping[str, object]:
        """A copy of all groups with their stamps and states, and of the books over them, as of one moment."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, keep_finished: bool = True) -> Sequence[Lost]:
        """Take back what `state_dict` gave, into a buffer that dispatched nothing yet.

        Returns what has to be dispatched again, since it was running, or finished and is not to be kept: that ends as
        dropped by the restart.
        """
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

    def state_dict(self) -> Mapping[str, object]:
        """How far `take` has come."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises `CheckpointError` if the prompts up to there are others."""
        ...
