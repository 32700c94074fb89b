"""Weight sync: what holds weights, what brings them there, and the canary that proves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np

from hooktrainer.errors import SyncError
from hooktrainer.ports.groups import Floats, Tokens

if TYPE_CHECKING:
    from torch import Tensor

Weights: TypeAlias = Mapping[str, "Tensor"]
"""Tensors by name."""


@attrs.frozen(eq=False, kw_only=True)
class Canary:
    """What the learner says of the text.

    Bytes that arrived are not yet weights in use: an engine can keep a head that it once copied, or the results of a
    prefix cache, or lay an adapter over weights that contain it already.
    """

    tokens: Tokens
    """Shape (L,), L ≥ 2."""
    logprobs: Floats
    """The learner's log-probability of each token given those before it. Shape (L - 1,)."""
    atol: float
    """Largest difference, in nats."""

    def __attrs_post_init__(self) -> None:
        if self.logprobs.shape != (len(self.tokens) - 1,) or not self.logprobs.size:
            raise SyncError(
                f"the learner gave log-probabilities of shape {self.logprobs.shape} for a canary of {len(self.tokens)} "
                "tokens; one for each token but the first was expected"
            )
        if np.isnan(self.logprobs).any():
            raise SyncError("the learner's own log-probabilities are NaN: these weights are not published")

    def compare(self, found: Floats, who: str) -> float:
        """The largest difference. Raises `SyncError` if it is above `atol`.

        `found` has the shape (L - 1,), or (R, L - 1) from R places that hold weights.
        """
        rows = np.atleast_2d(np.asarray(found, dtype=np.float64))
        if rows.shape[1:] != self.logprobs.shape or not len(rows):
            expected = f"{self.logprobs.shape}, or one such row for each place that holds weights"
            raise SyncError(f"{who} gave log-probabilities of shape {np.shape(found)} for the canary, not {expected}")
        same = rows == self.logprobs  # two infinities are, and their difference is not 0
        differences = np.where(same, 0.0, np.abs(np.where(same, 0.0, rows) - np.where(same, 0.0, self.logprobs)))
        worst = float(np.max(differences))
        if not worst <= self.atol:  # NaN is not
            row, place = np.unravel_index(np.argmax(np.nan_to_num(differences, nan=np.inf)), differences.shape)
            raise SyncError(
                f"{who} does not use the weights that it confirmed: of the canary's token {place + 1} (id "
                f"{self.tokens[place + 1]}) its log-probability is {rows[row, place]:.6g}, the learner's "
                f"{self.logprobs[place]:.6g}, a difference of {differences[row, place]:.3g} where canary_atol allows "
                f"{self.atol:g}. A head, a tied embedding or a cache that was kept does this, or an adapter missing or "
                "applied twice; an engine of lower precision needs a larger canary_atol"
            )
        return worst


@runtime_checkable
class WeightHolder(Protocol):
    """Holds two sets of weights: one in use, one that the next version is brought into.

    This is what an engine of yours owes to the sync, which calls in this order: `spec`, `stage` (once a bucket),
    `pause`, `flip`, `version`, `logprobs`, `resume`; and after a failure anywhere `unflip` where something was staged,
    then `resume` where it was paused. Each may raise, which is such a failure. All on the loop's thread.
    """

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        ...

    def spec(self) -> Weights | None:
        """Shapes and dtypes of what it takes, by name: its own tensors, or ones on the device `meta`.

        Names of one tensor share the object, or the memory, and are sent once. None takes everything as the learner has
        it.
        """
        ...

    def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
        """Copy a bucket of weights beside those in use; the first of another version forgets what was staged before.

        Returns `hooktrainer.weight_sync.checksums.checksum` of every tensor, by name, of what it then holds, read back
        from its own memory. Tensors come on the host, contiguous, in the dtypes of `spec`, and may be reused after the
        call. Raises without a trace in what is in use.
        """
        ...

    def pause(self) -> None:
        """Sample nothing more with weights that no answer in work holds, until `resume`; returns once that is so."""
        ...

    def flip(self) -> None:
        """Use the staged weights from now on; keep the old ones for `unflip`.

        Whatever was computed with the old ones and would be used for new answers, such as a prefix cache, is forgotten.
        """
        ...

    def unflip(self) -> None:
        """Undo the `flip` since the last `stage`, if there was one, and forget what is staged."""
        ...

    def resume(self) -> None:
        """Sample again; nothing to do if it was not paused."""
        ...

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), by the weights in use, also if paused.

        At sampling temperature, and by the way that answers are made, caches included. With several copies of the
        weights, replicas or workers, one row each: (R, L - 1).
        """
        ...


@runtime_checkable
class WeightTransport(Protocol):
    """Brings weights from the learner to engines, all or nothing."""

    def publish(
        self,
        weights: Weights,
        version: int,
        engines: Sequence[WeightHolder],
        *,
        canary: Canary | None = None,
        trained: Weights | None = None,
        bucket_bytes: int = ...,
    ) -> Mapping[str, object]:
        """Stage on every engine, compare checksums, pause, flip, score the canary, resume; returns metrics.

        On a failure all engines are as before and `SyncError` is raised. `canary` is what the learner says of a fixed
        text. `trained` is what the optimizer changes: if that moved, weights that did not are refused. `bucket_bytes`
        bounds the memory beyond the two sets; a larger tensor goes alone.
        """
        ...
