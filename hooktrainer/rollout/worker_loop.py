"""The work of one worker: claim groups, decode, hand in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.ports import FailureReason, Group, Trajectory
from hooktrainer.rollout.scheduler import Decoding
from hooktrainer.rollout.stats import Meter
from hooktrainer.weight_sync.torn_reads import Echo

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Draft
    from hooktrainer.rollout.generation import Generator

CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)


class Source(Protocol):
    """Where groups come from and go back to: the part of a replay buffer that a worker sees."""

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take groups to generate; empty once closed, and without `block` when none is pending."""
        ...

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        """Hand in the answers of a claimed group."""
        ...

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated."""
        ...


def reason_of(error: BaseException) -> FailureReason:
    """What an exception means for its group."""
    if isinstance(error, CANCELLED):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"


class Server:
    """One worker's loop; until it is stopped, every group that it claimed is finished or failed."""

    def __init__(
        self,
        generator: Generator,
        source: Source,
        meter: Meter,
        stopped: threading.Event,
        witness: Callable[[int, Collection[Echo]], None],
    ) -> None:
        """`witness` hears of every group from which weights it was sampled; what it raises ends the worker."""
        self._witness = witness
        self._generator = generator
        self._source = source
        self._meter = meter
        self._stopped = stopped
        self._decoding = Decoding(generator)
        self._counted_until = perf_counter()

    def run(self, *, block: bool) -> None:
        """Serve until the source is closed or the engine is stopped; without `block`, until nothing is pending."""
        while not self._stopped.is_set():
            claimed = self._claim(block=block)
            if not claimed and not self._decoding:
                return
            self._advance(claimed)
        self._decoding.abandon()  # nobody waits for it any more

    def _claim(self, *, block: bool) -> Sequence[Group]:
        room = self._decoding.room()
        if not room:
            return ()
        if self._decoding or not block:
            return self._source.claim(room, block=False)
        mark = self._meter.mark()
        claimed = self._source.claim(room)
        self._meter.waited(mark)
        self._counted_until = perf_counter()
        return claimed

    def _advance(self, claimed: Sequence[Group]) -> None:
        try:
            self._decoding.add(claimed)
            for group, drafts in self._decoding.step():
                self._hand_in(group, drafts)
        except BaseException as error:
            for group in self._decoding.abandon():
                self._source.fail(group, error, reason_of(error))
            if isinstance(error, SyncError) or not isinstance(error, (Exception, *CANCELLED)):
                raise

    def _hand_in(self, group: Group, drafts: Sequence[Draft]) -> None:
        """Score and finish a group, or fail it: an answer that cannot be scored costs no other group."""
        self._witness(group.number, {echo for draft in drafts for echo in draft.echoes})
        try:
            answers = self._whole(group, drafts)
        except (Exception, *CANCELLED) as error:  # noqa: BLE001 - the buffer raises it, or replaces the group
            self._source.fail(group, error, reason_of(error))
        else:
            now = perf_counter()
            self._meter.generated(
                now - self._counted_until, len(answers), sum(len(answer.tokens) for answer in answers)
            )
            self._counted_until = now
            self._source.finish(group, answers)
        self._decoding.done(group)

    def _whole(self, group: Group, drafts: Sequence[Draft]) -> Sequence[Trajectory]:
        answers: Sequence[Trajectory] | None = self._generator.trajectories(drafts)
        wanted = self._generator.options.n
        if answers is None or len(answers) != wanted:
            found = "nothing" if answers is None else f"{len(answers)} answers"
            raise RolloutError(f"early return: {found} instead of {wanted} answers to {group.prompt.text!r}")
        return answers
