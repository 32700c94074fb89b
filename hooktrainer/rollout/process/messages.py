"""Messages between an engine and its worker processes, and pickling of exceptions and configurations."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
from collections.abc import Collection, Mapping, Sequence
from types import FunctionType
from typing import Any, Final

import attrs

from hooktrainer.errors import RolloutError, line_of, traceback_of
from hooktrainer.metrics import Metric
from hooktrainer.ports import FailureReason, Floats, Group, Tokens, Trajectory
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.process.main_module import is_importable
from hooktrainer.rollout.process.shared_memory import FlatLayout
from hooktrainer.weight_sync.torn_reads import Fingerprint

_FILE_MODULE: Final = "hooktrainer_file_"
"""Prefix of the names of modules that were loaded as `file.py:Class`."""


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """Configuration that a worker process needs to generate."""

    generator: GeneratorConfig
    options: SamplingOptions
    layout: FlatLayout
    intra_op_threads: int


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
    scores: Floats | PackedError | None = None
    """For `Score`: log-probability of each token given the tokens before it, or the error that prevented it."""


@attrs.frozen
class GroupFinished:
    """From a worker: the answers of a group, metrics since the last one, and fingerprints of its weights."""

    number: int
    trajectories: Sequence[Trajectory]
    metrics: Mapping[str, Metric]
    fingerprints: Collection[Fingerprint]


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


class _Packer(pickle.Pickler):
    """Records the files of classes and functions that cannot be imported by name."""

    def __init__(self, target: io.BytesIO) -> None:
        super().__init__(target)
        self.files: dict[str, str] = {}

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__.startswith(_FILE_MODULE):
            self.files[value.__module__] = str(sys.modules[value.__module__].__file__)
        if isinstance(value, type | FunctionType) and not is_importable(value.__module__):
            raise pickle.PicklingError(f"{value.__qualname__} is defined in a main module without a file")
        return NotImplemented


def pack(config: WorkerConfig) -> bytes:
    """Pack a configuration for `unpack` in a worker."""
    target = io.BytesIO()
    packer = _Packer(target)
    packer.dump(config)
    return pickle.dumps((packer.files, target.getvalue()))


def unpack(packed: bytes) -> WorkerConfig:
    """Return the configuration, after executing the files that its classes come from."""
    files, config = pickle.loads(packed)  # noqa: S301 - sent by our own engine
    for name, path in files.items():
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    unpacked: WorkerConfig = pickle.loads(config)  # noqa: S301 - as above
    return unpacked
