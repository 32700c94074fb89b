"""The protocol that publishes a version on all engines or on none.

    stage, verified by checksums → pause → flip, or load → canary → resume

No weights in use are changed before the flip. No request starts between pause and resume, so no answer starts on
weights that are not confirmed. On a failure at any point, every engine is restored to the previous version and
resumed, and the error is raised. An engine with one set of weights loads the previous version again, and proves it by
the canary of that version. From the first check to the last resume, no other sync uses the transport or the
engines. A transport implements `_stage`, which moves the bytes.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeGuard

from hooktrainer.errors import SyncError, add_error_note, message_of
from hooktrainer.metrics import Max
from hooktrainer.ports import ReloadingHolder, ReversibleHolder, WeightHolder
from hooktrainer.weight_sync.exclusive import exclusive_sync

if TYPE_CHECKING:
    from hooktrainer.ports import Canary, Weights

BUCKET_BYTES: Final = 256 * 2**20


class SyncAttempt:
    """One attempt to publish a version, with a log of the calls that an undo has to reverse."""

    def __init__(
        self, version: int, engines: Sequence[WeightHolder], confirmed: Mapping[int, Canary] | None = None
    ) -> None:
        """Begin an attempt. `confirmed` has canaries by version, which prove a version that is loaded again."""
        self.version: Final = version
        self._confirmed = confirmed or {}
        self.engines: Final = engines
        self.staged: Final[list[int]] = []
        """Indices of engines that hold staged weights; `unflip` on any other engine would undo an earlier version."""
        self._paused: list[int] = []
        self._loaded: list[int] = []
        """Indices of engines with one set of weights, in which they may have been replaced."""
        self._unproven: set[int] = set()
        """Those of them that may not resume."""
        self._before: Mapping[int, int] = {}

    def check_engines(self, canary: Canary | None, *, first: bool) -> None:
        """Raise `SyncError` if there is no engine, or if one lacks a method or holds a version that is not older."""
        if not self.engines:
            raise SyncError("there is no engine to publish it on")
        shared = ("spec", "stage", "pause", "resume", *(() if canary is None else ("logprobs",)))
        for place, engine in enumerate(self.engines):
            required = (*shared, *(() if _reloads(engine) else ("flip", "unflip")))
            if missing := [f"{name}()" for name in required if not callable(getattr(engine, name, None))]:
                raise SyncError(
                    f"{engine_name(place, engine)} has no {', '.join(missing)}; "
                    "an engine implements `hooktrainer.ports.ReversibleHolder`, or `ReloadingHolder`"
                )
        for (place, engine), (another, other) in itertools.combinations(enumerate(self.engines), 2):
            if engine is other:
                raise SyncError(f"engine {place} and engine {another} are the same object")
        self._before = {place: engine.version for place, engine in enumerate(self.engines)}
        for place, held in self._before.items():
            if not first and held >= self.version:
                raise SyncError(
                    f"{engine_name(place, self.engines[place])} already holds version {held}, and versions only rise. "
                    "Only the first publish of a run may replace a newer version: publish(..., first=True)"
                )

    def switch(self, canary: Canary | None) -> float:
        """Switch all engines, score the canary on each and resume; return the largest difference of the canary."""
        for place, engine in enumerate(self.engines):
            self._paused.append(place)  # before the call, which may pause part of an engine and raise
            engine.pause()
        for place, engine in enumerate(self.engines):
            self._use(place, engine)
        self._confirm()
        worst = 0.0
        if canary is not None:
            for place, engine in enumerate(self.engines):
                worst = max(worst, canary.compare(engine.logprobs(canary.tokens), engine_name(place, engine)))
        for engine in self.engines:
            engine.resume()
        return worst

    def undo(self, error: BaseException) -> None:
        """Restore the previous version on every engine, and resume; a failure of one engine does not stop the others.

        Failures become notes on `error`. An interrupt that arrives meanwhile is raised at the end.
        """
        interrupts: list[BaseException] = []
        for place in self.staged:
            engine = self.engines[place]
            if _reverses(engine):
                interrupts += self._undo(place, "could not restore its old weights", engine.unflip, error)
        for place in self._loaded:
            self._unproven.add(place)
            interrupts += self._undo(place, "could not load its old weights again", partial(self._reload, place), error)
        for place in self._paused:
            if place not in self._unproven:
                interrupts += self._undo(place, "could not resume", self.engines[place].resume, error)
        for place in self.staged:
            interrupts += self._undo(place, "did not restore its old weights", partial(self._check_back, place), error)
        if interrupts:
            raise interrupts[0] from error

    def _use(self, place: int, engine: WeightHolder) -> None:
        if _reverses(engine):
            engine.flip()
        elif _reloads(engine):
            self._loaded.append(place)  # before the call, which may replace some of the weights and raise
            engine.load(self.version)

    def _reload(self, place: int) -> None:
        """Load the version before again, and prove it by its canary."""
        engine, before = self.engines[place], self._before[place]
        assert _reloads(engine)
        engine.load(before)
        if canary := self._confirmed.get(before):
            canary.compare(engine.logprobs(canary.tokens), engine_name(place, engine))
        self._unproven.discard(place)

    def _confirm(self) -> None:
        behind = {place: engine.version for place, engine in enumerate(self.engines) if engine.version != self.version}
        if behind:
            raise SyncError(
                f"after the flip to version {self.version}, engines hold other versions (by index): {behind}"
            )

    def _check_back(self, place: int) -> None:
        held, before = self.engines[place].version, self._before[place]
        if held != before:
            raise SyncError(f"it holds version {held}, expected {before}")

    def _undo(
        self, place: int, failed: str, action: Callable[[], None], error: BaseException
    ) -> Iterator[BaseException]:
        noted = ""
        for _ in range(2):  # retry once, so that no engine stays paused or keeps unconfirmed weights
            try:
                action()
            except BaseException as second:  # noqa: BLE001 - the first error is raised, with a note of this one
                if repr(second) != noted:
                    add_error_note(error, second, f"{engine_name(place, self.engines[place])} {failed};")
                    noted = repr(second)
                if not isinstance(second, Exception):
                    yield second
            else:
                return


class VerifiedTransport(abc.ABC):
    """Base of transports: the protocol, without the transfer of bytes."""

    _confirmed: Mapping[int, Canary] = MappingProxyType({})
    """The canary of the version that was published last."""

    def publish(
        self,
        weights: Weights,
        version: int,
        engines: Sequence[WeightHolder],
        *,
        canary: Canary | None = None,
        trained: Weights | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        first: bool = False,
    ) -> Mapping[str, object]:
        """Publish weights on every engine; see `hooktrainer.ports.WeightTransport`."""
        attempt = SyncAttempt(version, engines, self._confirmed)
        with exclusive_sync(version, (self, *engines)):
            with _all_or_nothing(attempt):
                attempt.check_engines(canary, first=first)
                staged = self._stage(attempt, weights, trained, bucket_bytes)
                worst = attempt.switch(canary)
            self._confirmed = {} if canary is None else {version: canary}
            self._published(version)
        return {**staged, **({} if canary is None else {"weight_sync/canary_error": Max(worst)})}

    @abc.abstractmethod
    def _stage(
        self, attempt: SyncAttempt, weights: Weights, trained: Weights | None, bucket_bytes: int
    ) -> Mapping[str, object]:
        """Stage on every engine, append each to `attempt.staged`, verify the checksums, and return metrics."""

    def _published(self, version: int) -> None:  # noqa: B027 - optional
        """Update the transport's own state after all engines have confirmed the version."""


@contextmanager
def _all_or_nothing(attempt: SyncAttempt) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        attempt.undo(error)
        if isinstance(error, Exception):
            raise SyncError(f"version {attempt.version} was not published: {message_of(error)}") from error
        raise


def _reverses(engine: WeightHolder) -> TypeGuard[ReversibleHolder]:
    return callable(getattr(engine, "flip", None))


def _reloads(engine: WeightHolder) -> TypeGuard[ReloadingHolder]:
    return callable(getattr(engine, "load", None))


def engine_name(place: int, engine: object) -> str:
    """Return the name of an engine for messages."""
    return f"engine {place} ({type(engine).__name__})"
