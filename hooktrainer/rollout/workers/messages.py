"""Messages between an engine and its workers, and pickling of exceptions."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from hooktrainer.errors import RolloutError, line_of, traceback_of
from hooktrainer.metrics import Metric
from hooktrainer.ports import FailureReason, Floats, Group, Span, Tokens, Trajectory
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.workers.flat_layout import FlatLayout
from hooktrainer.rollout.workers.options import WorkerOptions
from hooktrainer.weight_sync.torn_reads import Fingerprint

WORKER: Final = "worker"
"""The track of a worker in its own timeline."""


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """Configuration that a worker needs to generate."""

    generator: GeneratorConfig
    options: WorkerOptions
    layout: FlatLayout


@attrs.frozen
class Generate:
    """To a worker: generate these groups."""

    groups: Sequence[Group]


@attrs.frozen
class Release:
    """To a worker: acknowledge once no thread reads this set of weights."""

    ticket: int
    index: int


@attrs.frozen
class Use:
    """To a worker: use this set of weights for new requests, and acknowledge."""

    ticket: int
    index: int
    version: int


@attrs.frozen
class Pause:
    """To a worker: start no request until `Resume`, and acknowledge."""

    ticket: int


@attrs.frozen
class Resume:
    """To a worker: start requests again, and acknowledge."""

    ticket: int


@attrs.frozen
class Score:
    """To a worker: return the log-probabilities of this text from the weights in use."""

    ticket: int
    tokens: Tokens


@attrs.frozen
class Stage:
    """To a worker that does not map the weights of the engine: copy a bucket into a set, and return its checksums."""

    ticket: int
    index: int
    bucket: object


@attrs.frozen
class Ready:
    """From a worker: it is ready to generate."""


@attrs.frozen
class Capacity:
    """From a worker: the number of groups that it could start in addition to the `received` ones."""

    groups: int
    received: int


@attrs.frozen
class Acknowledged:
    """From a worker: the request with this ticket is done."""

    ticket: int
    reply: Floats | Mapping[str, int] | PackedError | None = None
    """For `Score`: log-probability of each token given the tokens before it. For `Stage`: checksums of the copies. For
    both: the error that prevented it."""


@attrs.frozen
class GroupFinished:
    """From a worker: the answers of a group, metrics and spans since the last one, and fingerprints of its weights."""

    number: int
    trajectories: Sequence[Trajectory]
    metrics: Mapping[str, Metric]
    fingerprints: Collection[Fingerprint]
    spans: Sequence[Span]
    """On the tracks `WORKER` and of weight syncs."""
    sent: float
    """Time of the worker's clock, which differs from that of the engine on another machine."""


@attrs.frozen
class GroupFailed:
    """From a worker: a group could not be generated."""

    number: int
    error: PackedError
    reason: FailureReason = "error"


@attrs.frozen
class WorkerFailed:
    """From a worker: it cannot continue."""

    error: PackedError
    thread: str


@attrs.frozen
class Abandoned:
    """From a worker that ends: its generating thread has not returned, and this is the method that it is in."""

    thread: str
    place: str

    def describe(self, worker: str, groups: str) -> str:
        """Return the warning about a worker with groups in flight."""
        return f"{worker} was ended with {groups} in flight; its thread {self.thread} is in {self.place}"


@attrs.frozen
class Warned:
    """From a worker: a fault that failed no group."""

    text: str

    def describe(self, worker: str, _groups: str) -> str:
        """Return the warning about a worker."""
        return f"{worker}: {self.text}"


class RemoteTraceback(Exception):  # noqa: N818 - it is the cause of another error
    """The traceback of an exception in another process, as text."""


@attrs.frozen
class PackedError:
    """An exception that is sent to another process."""

    pickled: bytes | None
    """None if it cannot be pickled."""
    summary: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        """Pack any exception; one that cannot be pickled is packed as text."""
        trace = traceback_of(error)
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # noqa: S301 - some exceptions can be pickled but not unpickled
        except Exception:  # noqa: BLE001 - pickling runs code of the class
            pickled = None
        return cls(pickled, line_of(error), trace)

    def unpack(self) -> BaseException:
        """Return the exception with its remote traceback as cause, or a `RolloutError` that quotes it."""
        error: BaseException = RolloutError(self.summary)
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)  # noqa: S301 - sent by our own worker
            except Exception as problem:  # noqa: BLE001 - as above
                error.add_note(f"it could not be unpickled here: {problem!r}")
        error.__cause__ = RemoteTraceback(f"\n{self.trace}")
        return error
