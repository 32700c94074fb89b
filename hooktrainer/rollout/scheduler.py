"""Continuous batching: requests of claimed groups in slots that are refilled as requests complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from hooktrainer.ports import Group
from hooktrainer.rollout.turns import PendingTurns

if TYPE_CHECKING:
    import threading

    from hooktrainer.rollout.decode_batch import DecodeBatch, Request
    from hooktrainer.rollout.generation import Generator

_POLL_S: Final = 0.05
"""Seconds after which a worker whose answers all wait for environments looks for new groups."""


class Scheduler:
    """Requests of one worker: at most `slots` in flight, or one group with `batching: group`.

    New requests start on the weights in use. After a sync, requests in flight finish in their own batch, which admits
    no others. With `on_sync: continue` they move to a batch on the new weights and are prefilled again, because keys
    and values of the old weights would give log-probabilities of no version.
    """

    def __init__(self, generator: Generator) -> None:
        options = generator.options
        self._generator = generator
        self._by_group = options.batching == "group"
        self._continues = options.on_sync == "continue"
        self._slots = options.n if self._by_group else options.slots
        self._rollbacks_seen = len(generator.weights.rollbacks)
        self._waiting: deque[Request] = deque()
        self._batches: list[tuple[DecodeBatch, ExitStack]] = []
        self._turns = None if generator.turns is None else PendingTurns(generator.turns)
        self._groups: dict[int, tuple[Group, Sequence[Request]]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the groups that are not done; may be read by other threads."""
        return list(self._groups)

    @property
    def threads(self) -> Sequence[tuple[int, threading.Thread]]:
        """Threads of environments with the numbers of their groups; may be read by other threads."""
        return () if self._turns is None else self._turns.threads()

    @property
    def max_groups(self) -> int:
        """Number of groups that fill all slots."""
        return -(-self._slots // self._generator.options.n)

    def room(self) -> int:
        """Return the number of groups whose first request can start now."""
        if self._by_group:
            return 0 if self._groups else 1
        asking = 0 if self._turns is None else max(0, len(self._turns) - self._slots)
        return max(0, -(-(self._free_slots() - len(self._waiting) - asking) // self._generator.options.n))

    def add(self, groups: Sequence[Group]) -> None:
        """Add the requests of these groups."""
        for group in groups:
            requests = self._generator.requests(group)
            self._groups[group.number] = (group, requests)
            self._waiting += requests

    def step(self, *, waits: bool = False) -> Sequence[tuple[Group, Sequence[Request]]]:
        """Fill the slots, decode one token of every request in flight, and return the groups that are complete.

        With `waits` or `batching: group`, wait for the environment of each turn that ends, so that results repeat.
        """
        self._follow_weights()
        self._fill()
        complete = [request for batch, _ in self._batches for request in batch.step()]
        self._close_batches(lambda batch: not batch.rows)  # so that the next version can be staged over its weights
        if self._turns is not None:
            complete = self._after_turns(complete, self._turns, waits=waits or self._by_group)
        self._discard_rolled_back()
        numbers = {request.number for request in complete}
        candidates = [self._groups[number] for number in sorted(numbers)]
        return [(group, own) for group, own in candidates if self._are_complete(own)]

    def done(self, group: Group) -> None:
        """Forget a complete group."""
        del self._groups[group.number]

    def abandon(self) -> Sequence[Group]:
        """Discard all requests, and return their groups."""
        groups = [group for group, _ in self._groups.values()]
        requests = [request for _, own in self._groups.values() for request in own]
        self._waiting.clear()
        self._groups.clear()
        if self._turns is not None:
            self._turns.clear()
        self._generator.end(requests)
        self._close_batches(lambda _: True)
        return groups

    def _after_turns(self, left: Sequence[Request], turns: PendingTurns, *, waits: bool) -> list[Request]:
        """Ask the environments of requests whose turns ended; return the requests that are complete."""
        complete = [request for request in left if request.conversation is None]
        turns.add([request for request in left if request.conversation is not None])
        idle = not self._batches and not self._waiting
        replied = turns.take_all() if waits else turns.take(timeout=_POLL_S if idle else 0.0)
        self._waiting += [request for request in replied if not request.complete]
        return complete + [request for request in replied if request.complete]

    def _are_complete(self, requests: Sequence[Request]) -> bool:
        pending = self._turns or ()
        return all(request.complete and request not in pending for request in requests)

    def _free_slots(self) -> int:
        return self._slots - sum(len(batch.rows) for batch, _ in self._batches)

    def _follow_weights(self) -> None:
        self._discard_rolled_back()
        if self._continues:
            version = self._generator.weights.version
            self._close_batches(lambda batch: batch.version != version)

    def _discard_rolled_back(self) -> None:
        """Restart the requests with tokens of a version whose sync failed, and close its batches."""
        restored = self._generator.weights.rollbacks[self._rollbacks_seen :]
        if not restored:
            return
        self._rollbacks_seen += len(restored)
        version = min(restored)  # tokens of later versions may belong to a failed sync
        self._close_batches(lambda batch: batch.version > version)
        for _, requests in self._groups.values():
            for request in requests:
                if request.versions and request.versions[-1] > version:
                    if request.complete:  # incomplete requests are in `_waiting` already
                        self._waiting.append(request)
                        if self._turns is not None:
                            self._turns.discard(request)
                    request.restart()

    def _fill(self) -> None:
        """Admit waiting requests. While paused, admit none; block until `resume` if no request is in flight."""
        weights = self._generator.weights
        if not self._waiting or not self._free_slots() or (self._batches and weights.paused):
            return
        if not self._batches or self._batches[-1][0].version != weights.version:
            stack = ExitStack()
            self._batches.append((stack.enter_context(self._generator.decode_batch(self._slots)), stack))
        batch, _ = self._batches[-1]
        self._discard_rolled_back()  # a sync may have failed while `decode_batch` waited
        if not self._batches or self._batches[-1][0] is not batch:
            return
        batch.admit([self._waiting.popleft() for _ in range(min(self._free_slots(), len(self._waiting)))])

    def _close_batches(self, closes: Callable[[DecodeBatch], bool]) -> None:
        """Close the batches for which `closes` is true; their requests in flight wait for another batch."""
        for batch, stack in self._batches:
            if closes(batch):
                self._waiting.extendleft(reversed(batch.leave()))
                stack.close()
        self._batches = [(batch, stack) for batch, stack in self._batches if not closes(batch)]
