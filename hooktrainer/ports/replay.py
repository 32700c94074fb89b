"""The replay buffer, the side of it that engines see, and the staleness policy that it follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Batch, FailureReason, Group, Lost, Prompt, Trajectory


class StalenessPolicy(Protocol):
    """What the buffer asks the staleness plugin; pure functions of numbers (`hooktrainer.replay.strategies`)."""

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
