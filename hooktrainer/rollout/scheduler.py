"""Continuous batching: the answers of claimed groups, in slots that are refilled as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hooktrainer.ports import Group

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import DecodeBatch, Request
    from hooktrainer.rollout.generation import Generator


class Scheduler:
    """What one worker has in work: at most `slots` answers at once, or one group with `batching: group`.

    New answers begin on the weights in use. Those in work when they change end on their own, in a batch that nobody
    joins any more, or go on with the new ones from their next token (`on_sync: continue`). Then all that they had read
    is read again: keys and values of the old weights would make log-probabilities that no set of weights gives.
    """

    def __init__(self, generator: Generator) -> None:
        options = generator.options
        self._generator = generator
        self._by_group = options.batching == "group"
        self._continues = options.on_sync == "continue"
        self._version = -1
        self._slots = options.n if self._by_group else options.slots
        self._waiting: deque[Request] = deque()
        self._batches: list[tuple[DecodeBatch, ExitStack]] = []
        self._groups: dict[int, tuple[Group, Sequence[Request]]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def room(self) -> int:
        """Groups to claim now, so that no slot stays empty."""
        if self._by_group:
            return 0 if self._groups else 1
        return max(0, -(-(self._free() - len(self._waiting)) // self._generator.options.n))

    def add(self, groups: Sequence[Group]) -> None:
        """Take groups into work."""
        for group in groups:
            requests = self._generator.requests(group)
            self._groups[group.number] = (group, requests)
            self._waiting += requests

    def step(self) -> Sequence[tuple[Group, Sequence[Request]]]:
        """Fill the slots and decode one token of every answer; the groups that are complete now."""
        self._follow_weights()
        self._fill()
        numbers = {request.number for batch, _ in self._batches for request in batch.step()}
        self._leave(lambda lane: not lane.rows)  # what nobody reads is free for the next version
        candidates = [self._groups[number] for number in sorted(numbers)]
        return [(group, requests) for group, requests in candidates if all(request.complete for request in requests)]

    def done(self, group: Group) -> None:
        """A complete group was handed in."""
        del self._groups[group.number]

    def abandon(self) -> Sequence[Group]:
        """Give up everything; the groups that were in work."""
        groups = [group for group, _ in self._groups.values()]
        self._waiting.clear()
        self._groups.clear()
        self._leave(lambda _: True)
        return groups

    def _free(self) -> int:
        return self._slots - sum(len(batch.rows) for batch, _ in self._batches)

    def _follow_weights(self) -> None:
        version, before = self._generator.weights.version, self._version
        self._version = version
        if version < before:
            self._take_back(version)
        self._leave(lambda batch: batch.version > version or (self._continues and batch.version != version))

    def _take_back(self, version: int) -> None:
        """A flip was undone: nobody may see what was sampled since."""
        for _, requests in self._groups.values():
            for request in requests:
                if request.versions and request.versions[-1] > version:
                    if request.complete:  # the others wait, or come from their lane
                        self._waiting.append(request)
                    request.restart()

    def _fill(self) -> None:
        newcomers = [self._waiting.popleft() for _ in range(min(self._free(), len(self._waiting)))]
        if not newcomers:
            return
        if not self._batches or self._batches[-1][0].version != self._generator.weights.version:
            stack = ExitStack()
            self._batches.append((stack.enter_context(self._generator.batch(self._slots)), stack))
        self._batches[-1][0].admit(newcomers)

    def _leave(self, leaves: Callable[[DecodeBatch], bool]) -> None:
        """Close the lanes that this is true of; answers that they have in work go on in another one."""
        for batch, stack in self._batches:
            if leaves(batch):
                self._waiting.extendleft(reversed(batch.leave()))
                stack.close()
        self._batches = [(batch, stack) for batch, stack in self._batches if not leaves(batch)]
