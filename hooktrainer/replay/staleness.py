"""The built-in staleness strategies: which groups to evict, which to wait for, and how much to dispatch ahead."""

from __future__ import annotations

from typing import ClassVar

import attrs

from hooktrainer.ports import Strategy


@attrs.frozen
class Drop(Strategy):
    """Evict finished groups with S > T, and replace them."""

    def evicts(self, staleness: int) -> bool:
        """Return whether S > T."""
        return staleness > self.threshold


@attrs.frozen
class Requeue(Drop):
    """Evict as `Drop` does, and dispatch the same prompts again, so that none is lost."""

    requeues: ClassVar[bool] = True


@attrs.frozen
class Wait(Strategy):
    """Evict nothing; block sampling while an unfinished group has S >= T.

    This bounds the staleness of groups that finish late, not of finished groups that wait in the queue.
    """

    def waits_for(self, staleness: int) -> bool:
        """Return whether S >= T."""
        return staleness >= self.threshold


@attrs.frozen
class Pace(Strategy):
    """Dispatch at most T steps ahead of the published version (AReaL, arXiv 2505.24298)."""

    def budget(self, *, version: int, trained: int, outstanding: int, per_step: int) -> int | None:
        """Return the groups of T + `version` steps, less those trained and those outstanding."""
        return (self.threshold + version) * per_step - (trained + outstanding)
