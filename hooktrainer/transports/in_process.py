"""Weights handed over within one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hooktrainer.errors import SyncError
from hooktrainer.metrics import Sum
from hooktrainer.ports import RolloutEngine

if TYPE_CHECKING:
    from hooktrainer.ports import Weights


class InProcess:
    """Each engine copies the learner's tensors; then all of them flip."""

    def publish(self, weights: Weights, version: int, engines: Sequence[RolloutEngine]) -> Mapping[str, object]:
        """Stage on every engine, then flip every engine; on failure all are as before and `SyncError` is raised."""
        staged: list[RolloutEngine] = []
        try:
            for engine in engines:
                engine.stage(weights, version)
                staged.append(engine)
            for engine in staged:
                engine.flip()
            _confirm(version, engines)
        except BaseException as error:
            _roll_back(staged, error)
            if isinstance(error, Exception):
                raise SyncError(f"version {version} was not published: {error}") from error
            raise
        return {"weight_sync/bytes": Sum(len(engines) * sum(tensor.nbytes for tensor in weights.values()))}


def _confirm(version: int, engines: Sequence[RolloutEngine]) -> None:
    behind = {place: engine.version for place, engine in enumerate(engines) if engine.version != version}
    if behind:
        raise SyncError(f"after the flip to version {version} these engines hold another: {behind}")


def _roll_back(staged: Sequence[RolloutEngine], error: BaseException) -> None:
    """Bring every engine back that was staged; one that cannot go back must not keep the others from it."""
    for place, engine in enumerate(staged):
        try:
            engine.unflip()
        except Exception as second:  # noqa: BLE001 - the first error leaves, with this one noted on it
            error.add_note(f"engine {place} could not go back to its old weights: {second!r}")
