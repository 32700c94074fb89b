"""The replay buffer, the part of it that engines use, and the staleness strategy that it follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import attrs

from hooktrainer._util.registry import Kind, check_call
from hooktrainer.errors import ConfigError
from hooktrainer.ports.groups import Batch, FailureReason, Group, Prompt, Replacement, Trajectory


@attrs.frozen
class Strategy:
    """Base of all staleness strategies: pure functions of numbers that the replay buffer calls.

    S = k - p + 1 is the staleness of a group in step k, where 1 is fresh. The base evicts nothing, waits for nothing
    and has no budget; a subclass overrides the methods that it needs.
    """

    threshold: int = 1
    """T, the threshold."""
    in_order: bool = False
    """Whether sampling waits for the oldest group, instead of passing over groups that are not finished."""

    requeues: ClassVar[bool] = False
    """Whether the prompt of an evicted group is dispatched again."""

    def evicts(self, staleness: int) -> bool:  # noqa: ARG002 (the base evicts nothing)
        """Return whether sampling evicts a finished group with this staleness; if so, it must for every larger one."""
        return False

    def waits_for(self, staleness: int) -> bool:  # noqa: ARG002 (the base never waits)
        """Return whether sampling waits for an unfinished group with this staleness; if so, it must for larger ones."""
        return False

    def budget(self, *, version: int, trained: int, outstanding: int, per_step: int) -> int | None:  # noqa: ARG002
        """Return how many groups may be dispatched now; None means no budget.

        Without a budget, warm-up, iterations and replacements decide.

        `per_step` is the number of groups in a step. After a resume with another one, `trained` is scaled to it.
        """
        return None


def _check_strategy(found: type, where: str) -> None:
    if not issubclass(found, Strategy):
        text = f"{found.__name__} of {where} is not a strategy: it must be a subclass of hooktrainer.ports.Strategy"
        raise ConfigError(text)
    check_call(found, where, "strategy", threshold=1, in_order=False)


STRATEGIES: Final = Kind[type[Strategy]]("strategy", group="hooktrainer.strategies", check=_check_strategy)
"""The staleness strategies that a configuration can name."""


class GroupSource(Protocol):
    """The part of a replay buffer that engines use."""

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Return up to `limit` pending groups to generate, oldest first.

        Block until there is one, unless `block` is False. Return nothing once the buffer is closed. The timeout of a
        group starts here: claim no more groups than can start now.
        """
        ...

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group; never blocks. None or no answer at all is a failure."""
        ...

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Report that a claimed group could not be generated; it is replaced, or `sample` raises its error."""
        ...

    def close(self) -> None:
        """Wake every waiting thread; no group is dispatched or claimed afterwards."""
        ...


@runtime_checkable
class SupportsWorkerReports(Protocol):
    """Optional method of a buffer, whose timeouts and reminders then name the workers that the loop waits for."""

    def set_worker_report(self, report: Callable[[int | None], str]) -> None:
        """Set the function that describes the worker of a running group, or with None all workers that are busy.

        It is called by the thread that samples, with the lock of the buffer. An engine sets it in `start`.
        """
        ...


@runtime_checkable
class ReplayBuffer(GroupSource, Protocol):
    """Groups between dispatch and training: pending, running, then finished or failed."""

    @property
    def version(self) -> int:
        """Return the published version, which new groups are stamped with."""
        ...

    def set_policy(self, policy: Strategy) -> None:
        """Set the staleness strategy."""
        ...

    def set_filter(self, keep: Callable[[Group], bool]) -> None:
        """Call `keep` with each finished group, and replace the group if it returns False.

        It is called under the lock, by any thread. An error that it raises is raised by `sample`, and ends the run.
        """
        ...

    def count_pending(self, block: bool = False) -> int:
        """Return the number of groups that can be claimed.

        With `block`, wait until there is one. Return 0 once the buffer is closed.
        """
        ...

    def advance(self, version: int) -> None:
        """Set the published version. Raises `ValueError` if it goes backwards."""
        ...

    def may_dispatch(self, requested: int, groups_per_step: int, *, makes_room: bool) -> int:
        """Return how many groups may be dispatched now; changes nothing.

        That is `requested`, or the budget of the staleness policy for steps of `groups_per_step` groups, limited by
        the capacity. With `makes_room`, groups that a full buffer would evict count as room.
        """
        ...

    def dispatch(self, prompts: Sequence[Prompt], groups_per_step: int | None = None) -> int:
        """Stamp prompts and make them pending; return how many finished groups were evicted to make room.

        `groups_per_step` is the size of a step from this dispatch on, unchanged if left out.
        """
        ...

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Replacement]], None]) -> Batch:
        """Remove and return the oldest finished groups; stale ones are evicted first.

        Block until there are `size` groups, or no more can come. `refill(replacements)` is called without any lock
        held, to dispatch replacements. It is also called with no replacements, so that an engine without threads can
        generate, and so that groups within a new budget are dispatched.
        """
        ...

    def trainable(self, step: int) -> bool:
        """Return whether a group that exists now could be trained in `step`."""
        ...

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        ...

    def frozen(self) -> AbstractContextManager[None]:
        """Return a context in which no other thread changes the buffer, for a consistent checkpoint.

        The state of a plugin may change in its filter, which any thread calls. The default does nothing. A buffer that
        several threads use must hold its lock.
        """
        return nullcontext()

    def state_dict(self) -> Mapping[str, object]:
        """Return a consistent copy of all groups with their stamps and states, and of all counts."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, keep_finished: bool = True) -> Sequence[Replacement]:
        """Restore the state returned by `state_dict()`, before the first dispatch; return the groups to dispatch again.

        Those are the groups that were running and, without `keep_finished`, the finished ones. The ledger counts them
        as dropped by the restart.
        """
        ...
