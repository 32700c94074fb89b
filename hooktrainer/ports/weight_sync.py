"""Ports of weight sync: weights, engines that hold them, transports, and the canary that verifies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np

from hooktrainer.errors import SyncError
from hooktrainer.ports.groups import Floats, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Weights: TypeAlias = Mapping[str, "Tensor"]
"""Tensors by name."""
_LARGE: Final = 30.0
"""Nats beyond which a log-probability is a sign of divergence: of a uniform guess among 250,000 tokens, it is -12."""


@runtime_checkable
class WeightSource(Protocol):
    """A mapping whose tensors are computed when they are read, such as adapters merged into their base.

    A sync reads each tensor once. It takes names, shapes and dtypes from `spec`.
    """

    def spec(self) -> Weights:
        """Return all names with shapes and dtypes, without computing a tensor.

        The tensors are stored ones, or ones on the device `meta`. Tied names share one tensor object or its memory.
        """
        ...

    def __getitem__(self, name: str) -> Tensor:
        """Compute the tensor of this name."""
        ...


@attrs.frozen(eq=False, kw_only=True)
class Canary:
    """A short text with the learner's log-probabilities, which every engine has to reproduce after a flip.

    Correct bytes do not prove that the weights are in use. An engine may keep an old copy of the head or the results of
    a prefix cache, or apply an adapter to weights that already contain it.
    """

    tokens: Tokens
    """Shape (L,), L ≥ 2."""
    logprobs: Floats
    """Log-probability of each token given the tokens before it, from the learner. Shape (L - 1,)."""
    atol: float
    """Largest allowed difference, in nats. Log-probabilities below -30 have a relative limit: `atol` for each 30."""

    def __attrs_post_init__(self) -> None:
        if self.logprobs.shape != (len(self.tokens) - 1,) or not self.logprobs.size:
            raise SyncError(
                f"the learner returned log-probabilities of shape {self.logprobs.shape} for a canary of "
                f"{len(self.tokens)} tokens; expected one for each token but the first"
            )
        if np.isnan(self.logprobs).any():
            raise SyncError(
                "the learner's own log-probabilities of the canary are NaN: these weights are not published"
            )

    def compare(self, found: Floats, who: str) -> float:
        """Return the largest difference to `found`. Raises `SyncError` if one exceeds what `atol` allows.

        `found` has the shape (L - 1,), or (R, L - 1) from R copies of the weights. `who` names the engine in errors.
        """
        rows = np.atleast_2d(np.asarray(found, dtype=np.float64))
        if rows.shape[1:] != self.logprobs.shape or not len(rows):
            expected = f"{self.logprobs.shape}, or one such row for each copy of the weights"
            raise SyncError(
                f"{who} returned log-probabilities of shape {np.shape(found)} for the canary, expected {expected}"
            )
        same = rows == self.logprobs  # equal infinities count as equal; their difference is NaN
        differences = np.where(same, 0.0, np.abs(np.where(same, 0.0, rows) - np.where(same, 0.0, self.logprobs)))
        excess = np.nan_to_num(differences - self._allowed(), nan=np.inf)
        row, place = np.unravel_index(np.argmax(excess), excess.shape)
        if excess[row, place] > 0.0:
            raise SyncError(
                f"{self._cause(int(place), who)}: for the canary's token {place + 1} (id {self.tokens[place + 1]}) its "
                f"log-probability is {rows[row, place]:.9g}, the learner's {self.logprobs[place]:.9g}, a "
                f"difference of {differences[row, place]:.3g}; canary_atol allows {self._allowed()[place]:.3g}. "
                f"{self._remedy(int(place))}"
            )
        return float(np.max(differences))

    def _allowed(self) -> NDArray[np.float64]:
        """Return the largest allowed difference of each token; it grows with log-probabilities that are large."""
        sizes = np.where(np.isfinite(self.logprobs), np.abs(self.logprobs), 0.0).astype(np.float64)
        return self.atol * np.maximum(1.0, sizes / _LARGE)

    def _cause(self, place: int, who: str) -> str:
        if self._has_exploded(place):
            return f"training has probably diverged, and {who} does not reproduce the learner's log-probabilities"
        return f"{who} does not use the weights that it confirmed"

    def _remedy(self, place: int) -> str:
        if self._has_exploded(place):
            return (
                "A uniform guess is at about -12, so the policy's own log-probabilities have exploded, and rounding "
                "errors with them. Lower optim.lr or optim.grad_clip"
            )
        return (
            "Possible causes: an old head, tied embedding or cache, or an adapter that is missing or applied twice. An "
            "engine of lower precision needs a larger canary_atol"
        )

    def _has_exploded(self, place: int) -> bool:
        return bool(abs(self.logprobs[place]) > _LARGE)


@runtime_checkable
class WeightHolder(Protocol):
    """Holds weights in use, and receives the next version: what every engine can do.

    A holder is also a `ReversibleHolder` or a `ReloadingHolder`. A sync calls, in this order: `spec`, `stage` (once per
    bucket), `pause`, `flip` or `load`, `version`, `logprobs`, `resume`. Any call may raise, which fails the sync. All
    calls are made on the loop's thread.
    """

    @property
    def version(self) -> int:
        """Version that the engine samples from, -1 before the first publish."""
        ...

    def spec(self) -> Weights | None:
        """Return names, shapes and dtypes that the engine takes: its own tensors, or ones on the device `meta`.

        Names that share the object or the memory are sent once. None means all weights, in the learner's dtypes.
        """
        ...

    def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
        """Copy a bucket of the next version; the first bucket of a version discards an earlier one that was staged.

        Return `hooktrainer.weight_sync.checksums.checksum` of each tensor by name, computed from the engine's own copy.
        The tensors are contiguous, on the host, in the dtypes of `spec`, and may be reused after the call. An error
        must leave the weights in use unchanged.
        """
        ...

    def pause(self) -> None:
        """Stop new requests until `resume`; return once no request can start on the old weights.

        Requests in flight continue on the weights that they started with, or `pause` waits for them.
        """
        ...

    def resume(self) -> None:
        """Let new requests start; do nothing if the engine is not paused."""
        ...

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,), also while paused.

        Use the weights in use, the sampling temperature, and the code path that generates answers, caches included. An
        engine with R copies of the weights, such as replicas or workers, returns one row for each: (R, L - 1).
        """
        ...


@runtime_checkable
class ReversibleHolder(WeightHolder, Protocol):
    """Holds two sets of weights, so that a switch to the next version can be undone.

    After a failure at any point, a sync calls `unflip` on every engine that staged a bucket, then `resume` on every
    engine that was paused.
    """

    def flip(self) -> None:
        """Use the staged weights for new requests, and keep the old ones for `unflip`.

        Clear every cache that was computed with the old weights and would be used for new requests.
        """
        ...

    def unflip(self) -> None:
        """Undo the `flip` since the last `stage`, if there was one, and discard staged weights."""
        ...


@runtime_checkable
class ReloadingHolder(WeightHolder, Protocol):
    """Holds one set of weights, such as a server, so that a switch is undone by loading the version before again.

    After a failed `load`, or any failure after it, a sync calls `load` with the version before, and scores the canary
    of that version. It calls `resume` only if this succeeds: unconfirmed weights answer no request.
    """

    def load(self, version: int) -> None:
        """Use this version for new requests once they can start: the staged one, or again the one before it.

        Return once it is in use, and score it in `logprobs` although requests are paused. Clear every cache of other
        weights. Version -1 means that no weights are confirmed: let no request start.
        """
        ...


@runtime_checkable
class WeightTransport(Protocol):
    """Publishes weights of the learner on engines: on all of them or on none."""

    def publish(
        self,
        weights: Weights,
        version: int,
        engines: Sequence[WeightHolder],
        *,
        canary: Canary | None = None,
        trained: Weights | None = None,
        bucket_bytes: int = ...,
        first: bool = False,
    ) -> Mapping[str, object]:
        """Stage on every engine, compare checksums, pause, flip, score the canary, resume; return metrics.

        Each tensor of `weights` is read once; see `WeightSource`. On a failure, restore all engines and raise
        `SyncError`. `trained` are the tensors that the optimizer changes: if they changed, unchanged weights are
        refused. `bucket_bytes` bounds the memory beyond the two sets of an engine; a larger tensor is sent alone.

        Versions only rise: raise `SyncError` if an engine holds this version or a newer one. Only the `first` publish
        of a run may replace them, such as after a resume from an older checkpoint. One sync runs at a time on an
        engine: a call from another thread waits, and a call inside `publish` raises `SyncError`.
        """
        ...
