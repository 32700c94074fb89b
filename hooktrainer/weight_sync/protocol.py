"""The one place where a version is brought to engines, all of them or none.

    stage, verified by checksums → pause → flip → canary → resume

Until the flip nothing that is in use was touched. From the pause to the end nothing is sampled, so that nobody sees
weights that are not confirmed yet. Whatever fails, wherever: every engine goes back to the version before and samples
again, and the error leaves. How the bytes travel is left to `_stage`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import SyncError, carry
from hooktrainer.metrics import Max
from hooktrainer.ports import WeightHolder

if TYPE_CHECKING:
    from hooktrainer.ports import Canary, Weights

BUCKET_BYTES: Final = 256 * 2**20


class SyncAttempt:
    """One version on its way: what was asked of which engine, so that it can be undone."""

    def __init__(self, version: int, engines: Sequence[WeightHolder]) -> None:
        self.version: Final = version
        self.engines: Final = engines
        self.staged: Final[list[int]] = []
        """Places of engines that hold something of it; the `unflip` of any other would undo an earlier version."""
        self._paused: list[int] = []
        self._before: Mapping[int, int] = {}

    def check_engines(self, canary: Canary | None) -> None:
        """Raise `SyncError` if an engine lacks what the protocol asks of it."""
        owed = ("spec", "stage", "pause", "flip", "unflip", "resume", *(() if canary is None else ("logprobs",)))
        for place, engine in enumerate(self.engines):
            if missing := [f"{name}()" for name in owed if not callable(getattr(engine, name, None))]:
                raise SyncError(
                    f"{who(place, engine)} has no {', '.join(missing)}; `hooktrainer.ports.WeightHolder` says what an "
                    "engine owes"
                )
        self._before = {place: engine.version for place, engine in enumerate(self.engines)}

    def switch(self, canary: Canary | None) -> float:
        """Use what is staged everywhere, once the canary has been scored; its largest difference."""
        for place, engine in enumerate(self.engines):
            self._paused.append(place)  # first, since it may be half-way when it raises
            engine.pause()
        for engine in self.engines:
            engine.flip()
        self._confirm()
        worst = 0.0
        if canary is not None:
            for place, engine in enumerate(self.engines):
                worst = max(worst, canary.compare(engine.logprobs(canary.tokens), who(place, engine)))
        for engine in self.engines:
            engine.resume()
        return worst

    def undo(self, error: BaseException) -> None:
        """Bring back every engine; one that cannot go back must not keep the others from it.

        Raises only an interrupt that came meanwhile, after all of it was done.
        """
        interrupts: list[BaseException] = []
        for place in self.staged:
            interrupts += self._undo(place, "could not go back to its old weights", self.engines[place].unflip, error)
        for place in self._paused:
            interrupts += self._undo(place, "could not go on", self.engines[place].resume, error)
        for place in self.staged:
            interrupts += self._undo(place, "did not go back", partial(self._check_back, place), error)
        if interrupts:
            raise interrupts[0] from error

    def _confirm(self) -> None:
        behind = {place: engine.version for place, engine in enumerate(self.engines) if engine.version != self.version}
        if behind:
            raise SyncError(f"after the flip to version {self.version} these engines hold another: {behind}")

    def _check_back(self, place: int) -> None:
        held, before = self.engines[place].version, self._before[place]
        if held != before:
            raise SyncError(f"it holds version {held}, not {before} again")

    def _undo(
        self, place: int, failed: str, action: Callable[[], None], error: BaseException
    ) -> Iterator[BaseException]:
        noted = ""
        for _ in range(2):  # an engine that stays paused, or on what nobody confirmed, is worse than a second call
            try:
                action()
            except BaseException as second:  # noqa: BLE001 - the first error leaves, with this one noted on it
                if repr(second) != noted:
                    carry(error, second, f"{who(place, self.engines[place])} {failed};")
                    noted = repr(second)
                if not isinstance(second, Exception):
                    yield second
            else:
                return


class VerifiedTransport(abc.ABC):
    """A transport, but for the way of its bytes."""

    def publish(
        self,
        weights: Weights,
        version: int,
        engines: Sequence[WeightHolder],
        *,
        canary: Canary | None = None,
        trained: Weights | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Mapping[str, object]:
        """Bring weights to every engine; see `hooktrainer.ports.WeightTransport`."""
        attempt = SyncAttempt(version, engines)
        with _all_or_nothing(attempt):
            attempt.check_engines(canary)
            staged = self._stage(attempt, weights, trained, bucket_bytes)
            worst = attempt.switch(canary)
        self._published()
        return {**staged, **({} if canary is None else {"weight_sync/canary_error": Max(worst)})}

    @abc.abstractmethod
    def _stage(
        self, attempt: SyncAttempt, weights: Weights, trained: Weights | None, bucket_bytes: int
    ) -> Mapping[str, object]:
        """Stage on every engine, note each in `attempt.staged`, and verify what they hold; returns metrics."""

    def _published(self) -> None:  # noqa: B027 - nothing to be done is fine
        """Every engine samples from the new version."""


@contextmanager
def _all_or_nothing(attempt: SyncAttempt) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        attempt.undo(error)
        if isinstance(error, Exception):
            raise SyncError(f"version {attempt.version} was not published: {error}") from error
        raise


def who(place: int, engine: object) -> str:
    """An engine in a message."""
    return f"engine {place} ({type(engine).__name__})"
