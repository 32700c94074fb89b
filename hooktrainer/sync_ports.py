"""Ports of weight sync: what holds weights, and what brings them there. Offered by `hooktrainer.ports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from hooktrainer.groups import Floats, Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from hooktrainer.weights.canary import Canary

    Weights: TypeAlias = Mapping[str, Tensor]


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

        Returns `hooktrainer.weights.checksums.checksum` of every tensor, by name, of what it then holds, read back from
        its own memory. Tensors come on the host, contiguous, in the dtypes of `spec`, and may be reused after the call.
        Raises without a trace in what is in use.
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
