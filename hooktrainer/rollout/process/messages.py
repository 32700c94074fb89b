"""What an engine and its worker processes tell each other, and how an exception travels."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import attrs

from hooktrainer.errors import RolloutError
from hooktrainer.metrics import Metric
from hooktrainer.ports import FailureReason, Floats, Group, Task, Tokens, Trajectory
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.process.shared_memory import FlatLayout
from hooktrainer.tasks.tokenizer import CharTokenizer
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from torch import nn

_FILE_MODULE: Final = "hooktrainer_file_"
"""What the modules of `file.py:Class` are called."""


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """Everything that a worker is made from."""

    policy: Callable[[], nn.Module]
    tokenizer: CharTokenizer
    task: Task
    seed: int
    options: SamplingOptions
    layout: FlatLayout
    intra_op_threads: int


@attrs.frozen
class Work:
    """To a worker: answer these groups."""

    groups: Sequence[Group]


@attrs.frozen
class Release:
    """To a worker: acknowledge once nobody reads this set of weights."""

    ticket: int
    place: int


@attrs.frozen
class Use:
    """To a worker: give this set of weights to new answers, and acknowledge."""

    ticket: int
    place: int
    version: int


@attrs.frozen
class Pause:
    """To a worker: begin no answer until `Resume`, and acknowledge."""

    ticket: int


@attrs.frozen
class Resume:
    """To a worker: begin answers again, and acknowledge."""

    ticket: int


@attrs.frozen
class Score:
    """To a worker: score this text with the weights in use."""

    ticket: int
    tokens: Tokens


@attrs.frozen
class Ready:
    """From a worker: it is set up."""


@attrs.frozen
class Room:
    """From a worker: so many groups it could take, having received so many since it was started."""

    groups: int
    received: int


@attrs.frozen
class Done:
    """From a worker: what it was asked for is done."""

    ticket: int
    scores: Floats | PackedError | None = None
    """Of `Score`: log-probability of each token given those before it, or why there is none."""


@attrs.frozen
class Finished:
    """From a worker: the answers of a group, what it measured meanwhile, and the weights that it sampled from."""

    number: int
    trajectories: Sequence[Trajectory]
    metrics: Mapping[str, Metric]
    fingerprints: Collection[Fingerprint]


@attrs.frozen
class Failed:
    """From a worker: a group could not be generated, or, without a number, the worker itself cannot go on."""

    number: int | None
    error: PackedError
    reason: FailureReason = "error"


class RemoteTraceback(Exception):  # noqa: N818 - it is where an error came from, not one of its own
    """The traceback of an exception in another process, as text."""


@attrs.frozen
class PackedError:
    """An exception on its way to another process."""

    pickled: bytes | None
    """None if it cannot be pickled."""
    summary: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        """Pack an exception, whatever it holds."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # noqa: S301 - an exception may be pickled, but not be made again
        except Exception:  # noqa: BLE001 - classes decide what pickling them raises
            pickled = None
        return cls(pickled, traceback.format_exception_only(error)[-1].strip(), trace)

    def unpack(self) -> BaseException:
        """The exception, with its traceback as its cause; a `RolloutError` that quotes it if it did not survive."""
        error: BaseException = RolloutError(self.summary)
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)  # noqa: S301 - from our own worker
            except Exception as problem:  # noqa: BLE001 - as above
                error.add_note(f"it could not be unpickled here: {problem!r}")
        error.__cause__ = RemoteTraceback(f"\n{self.trace}")
        return error


class _Packer(pickle.Pickler):
    """Notes the files that classes and functions come from which no import would find."""

    def __init__(self, target: io.BytesIO) -> None:
        super().__init__(target)
        self.files: dict[str, str] = {}

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__.startswith(_FILE_MODULE):
            self.files[value.__module__] = str(sys.modules[value.__module__].__file__)
        return NotImplemented


def pack(config: WorkerConfig) -> bytes:
    """A recipe for `unpack` in a worker."""
    target = io.BytesIO()
    packer = _Packer(target)
    packer.dump(config)
    return pickle.dumps((packer.files, target.getvalue()))


def unpack(packed: bytes) -> WorkerConfig:
    """The recipe; files that its classes come from are executed."""
    files, config = pickle.loads(packed)  # noqa: S301 - from our own engine
    for name, path in files.items():
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    unpacked: WorkerConfig = pickle.loads(config)  # noqa: S301 - as above
    return unpacked
