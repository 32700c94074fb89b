"""The queue of outstanding groups, in the order of dispatch; stamps ascend along it.

Groups are claimed from the oldest pending one on. Every finished group therefore comes before the first pending group,
and a search for finished groups passes running groups only. Its cost does not depend on the length of the queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import attrs

from hooktrainer.ports import Group
from hooktrainer.replay.serialization import pack_groups, unpack_groups

State: TypeAlias = Literal["pending", "running", "finished"]


@attrs.define(eq=False)
class QueueEntry:
    """A group and its state in the queue."""

    group: Group
    state: State = "pending"
    claimed_at: float = 0.0


class GroupQueue:
    """Groups that are pending, running or finished. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, QueueEntry] = OrderedDict()
        self._pending: deque[QueueEntry] = deque()
        self._running: OrderedDict[int, QueueEntry] = OrderedDict()  # in the order of claiming

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_pending(self) -> int:
        """Number of groups that no engine has claimed."""
        return len(self._pending)

    @property
    def counts(self) -> Mapping[State, int]:
        """Number of groups in each state."""
        pending, running = len(self._pending), len(self._running)
        return {"pending": pending, "running": running, "finished": len(self._entries) - pending - running}

    @property
    def newest(self) -> Group | None:
        """The group that was dispatched last, None if the queue is empty."""
        entry = next(reversed(self._entries.values()), None)
        return None if entry is None else entry.group

    def append(self, group: Group) -> None:
        """Add a pending group at the end."""
        entry = QueueEntry(group)
        self._entries[group.number] = entry
        self._pending.append(entry)

    def claim(self, limit: int, now: float) -> list[Group]:
        """Mark the `limit` oldest pending groups as running and return them."""
        claimed = [self._pending.popleft() for _ in range(limit)]
        for entry in claimed:
            entry.state, entry.claimed_at = "running", now
            self._running[entry.group.number] = entry
        return [entry.group for entry in claimed]

    def is_running(self, group: Group) -> bool:
        """Return whether the group is being generated."""
        return group.number in self._running

    def finish(self, group: Group) -> float:
        """Mark a running group as finished, store its answers, and return the time at which it was claimed."""
        entry = self._running.pop(group.number)
        entry.group, entry.state = group, "finished"
        return entry.claimed_at

    def remove(self, group: Group) -> None:
        """Remove a running or finished group."""
        del self._entries[group.number]
        self._running.pop(group.number, None)

    def groups(self) -> Iterator[Group]:
        """Yield all groups, oldest first."""
        return (entry.group for entry in self._entries.values())

    def finished(self, *, in_order: bool = False) -> Iterator[Group]:
        """Yield finished groups, oldest first; with `in_order`, stop at the first unfinished group."""
        for entry in self._entries.values():
            if entry.state == "finished":
                yield entry.group
            elif in_order or entry.state == "pending":
                return

    def oldest_unfinished(self) -> list[Group]:
        """Return the oldest running group and the oldest pending group, if there are any."""
        oldest = (next(iter(self._running.values()), None), self._pending[0] if self._pending else None)
        return [entry.group for entry in oldest if entry is not None]

    def running(self) -> Iterator[tuple[Group, float]]:
        """Yield running groups with the time of the claim, the earliest first."""
        return ((entry.group, entry.claimed_at) for entry in self._running.values())


def pack_queue(queue: GroupQueue) -> Mapping[str, object]:
    """Return all groups in order, each with its state, as columns of plain data."""
    entries = list(queue._entries.values())
    return {"state": [entry.state for entry in entries], "groups": pack_groups(list(queue.groups()))}


def unpack_queue(state: Mapping[str, Any], *, keep_finished: bool) -> tuple[GroupQueue, list[Group]]:
    """Restore a queue of the pending groups and, with `keep_finished`, the finished ones; return it with the others."""
    queue, removed = GroupQueue(), list[Group]()
    for group, kind in zip(unpack_groups(state["groups"]), state["state"], strict=True):
        if kind == "pending":
            queue.append(group)
        elif kind == "finished" and keep_finished:
            queue._entries[group.number] = QueueEntry(group, "finished")
        else:
            removed.append(group)
    return queue, removed
