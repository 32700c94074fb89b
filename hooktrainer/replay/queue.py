"""The line of outstanding groups, in the order of dispatch, along which stamps ascend.

Groups are claimed from the head of what is pending. Hence all that is finished stands before the first pending group,
and whoever looks for it passes no more than what is running, however many groups there are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from hooktrainer.ports import Group
from hooktrainer.replay.serialization import pack_groups, unpack_groups


@attrs.define(eq=False)
class Place:
    """A group's place in the line."""

    group: Group
    state: Literal["pending", "running", "finished"] = "pending"
    claimed_at: float = 0.0


class Line:
    """Groups that are pending, running or finished; nothing here is thread-safe."""

    def __init__(self) -> None:
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._pending: deque[Place] = deque()
        self._running: OrderedDict[int, Place] = OrderedDict()  # in the order of claiming

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_pending(self) -> int:
        """Groups that nobody claimed yet."""
        return len(self._pending)

    @property
    def num_running(self) -> int:
        """Groups that are being generated."""
        return len(self._running)

    @property
    def num_finished(self) -> int:
        """Groups that can be sampled."""
        return len(self._places) - len(self._pending) - len(self._running)

    @property
    def newest(self) -> Group | None:
        """The group at the end."""
        place = next(reversed(self._places.values()), None)
        return None if place is None else place.group

    def append(self, group: Group) -> None:
        """Put a pending group at the end."""
        place = Place(group)
        self._places[group.number] = place
        self._pending.append(place)

    def claim(self, limit: int, now: float) -> list[Group]:
        """Let the oldest pending groups run."""
        claimed = [self._pending.popleft() for _ in range(min(limit, len(self._pending)))]
        for place in claimed:
            place.state, place.claimed_at = "running", now
            self._running[place.group.number] = place
        return [place.group for place in claimed]

    def runs(self, group: Group) -> bool:
        """Whether the group is being generated."""
        return group.number in self._running

    def finish(self, group: Group) -> float:
        """Keep a running group with its answers; returns when it was claimed."""
        place = self._running.pop(group.number)
        place.group, place.state = group, "finished"
        return place.claimed_at

    def remove(self, group: Group) -> None:
        """Take a running or finished group out."""
        del self._places[group.number]
        self._running.pop(group.number, None)

    def finished(self, *, in_order: bool = False) -> Iterator[Group]:
        """Finished groups from the head; with `in_order` only those that no unfinished one stands before."""
        for place in self._places.values():
            if place.state == "finished":
                yield place.group
            elif in_order or place.state == "pending":
                return

    def oldest_unfinished(self) -> list[Group]:
        """The oldest running group and the oldest pending one, as far as there are any."""
        oldest = (next(iter(self._running.values()), None), self._pending[0] if self._pending else None)
        return [place.group for place in oldest if place is not None]

    def running(self) -> Iterator[tuple[Group, float]]:
        """Running groups with the moment when they were claimed, the longest running first."""
        return ((place.group, place.claimed_at) for place in self._running.values())


def pack_line(line: Line) -> Mapping[str, object]:
    """All groups in order, each with its state."""
    places = list(line._places.values())
    return {"state": [place.state for place in places], "groups": pack_groups([place.group for place in places])}


def unpack_line(state: Mapping[str, Any], *, keep_finished: bool) -> tuple[Line, list[Group]]:
    """A line of what was pending and, if it is to be kept, finished; and the other groups, which left it."""
    line, gone = Line(), list[Group]()
    for group, was in zip(unpack_groups(state["groups"]), state["state"], strict=True):
        if was == "pending":
            line.append(group)
        elif was == "finished" and keep_finished:
            line._places[group.number] = Place(group, "finished")
        else:
            gone.append(group)
    return line, gone
