"""The TensorBoard sink: scalars, histograms and the configuration in event files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer._util import files
from hooktrainer.errors import RecordError
from hooktrainer.events import Status
from hooktrainer.metrics import Row, number
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.tracker import flat_config, require_package

_ROWS, _UPDATES = "", "iterations"
"""Folders below the directory of the sink."""
_ENDS: Final[Mapping[str, str]] = {"failed": "STATUS_FAILURE", "interrupted": "STATUS_UNKNOWN"}
"""How TensorBoard shows the status of a run; `STATUS_SUCCESS` for the others."""


@attrs.define
class TensorBoardSink:
    """Writes event files to `tensorboard/` in the run directory: scalars, histograms and the configuration.

    A resumed run starts a new event file, which hides the later steps of the earlier ones.
    """

    critical: bool = False
    """Whether an error ends the run. If not, the sink is dropped with a warning."""
    per_iteration: bool = False
    """Whether the metrics of each local update are written too, to the folder `iterations`, over their number."""
    _run: RunInfo | None = attrs.field(default=None, init=False, repr=False)
    _files: dict[str, _EventFile] = attrs.field(factory=dict, init=False, repr=False)

    def check_installed(self) -> None:
        """Raise `ConfigError` unless the package tensorboard is installed."""
        require_package("tensorboard", "tensorboard")

    def open(self, run: RunInfo) -> None:
        """Create the directory. Raises `RecordError` if it cannot be written."""
        self.check_installed()
        self.close("stopped")
        self._run = run
        try:
            self._directory(run).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"event files cannot be written to {self._directory(run)}: {error}") from None

    def write(self, step: int, row: Row) -> None:
        """Append a row and sync it to disk."""
        self._file(_ROWS, step).write(step, row)

    def write_iteration(self, iteration: int, row: Row) -> None:
        """Append the metrics of a local update."""
        self._file(_UPDATES, iteration).write(iteration, row)

    def rewind(self, step: int) -> Sequence[int]:
        """Hide all rows after `step`, and return their steps."""
        if self._run is None:
            return ()
        later = sorted(found for found in _steps(self._directory(self._run)) if found > step)
        self._file(_ROWS, step + 1)
        if self.per_iteration:
            self._file(_UPDATES, step * self._run.iterations_per_step + 1)
        return later

    def close(self, status: Status) -> None:
        """Write how the run ended."""
        written, self._files = self._files, {}
        if _ROWS in written:
            written[_ROWS].end(_ENDS.get(status, "STATUS_SUCCESS"))

    def _file(self, folder: str, first: int) -> _EventFile:
        """Return an event file of this start. The first call creates it, and hides earlier events from `first` on."""
        if self._run is None:
            raise RecordError("the sink tensorboard is not open")
        if folder not in self._files:
            self._files[folder] = _EventFile.new(self._directory(self._run) / folder, self._run, first)
            if folder == _ROWS:
                self._files[folder].begin(self._run)
        return self._files[folder]

    @staticmethod
    def _directory(run: RunInfo) -> Path:
        return run.directory / "tensorboard"


@attrs.define
class _EventFile:
    """An event file that is complete after every call, and needs no thread."""

    path: Path
    _start: int
    """The step that the configuration and the end belong to."""

    @classmethod
    def new(cls, directory: Path, run: RunInfo, first_step: int) -> _EventFile:
        """Create a file that is read after those of earlier starts."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{run.start:06}.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        events = cls(directory / name, run.resumed_step)
        events._add(0, file_version="brain.Event:2")
        events._add(first_step, session_log=SessionLog(status=SessionLog.START))
        files.sync(directory)
        return events

    def begin(self, run: RunInfo) -> None:
        """Append the configuration as hyperparameters."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        if run.config:
            self._add(self._start, summary=hparams_pb(flat_config(run.config), trial_id=run.id))

    def write(self, step: int, row: Row) -> None:
        """Append the values of a step as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=key, histo=_histogram(value, key))
            if isinstance(value, Mapping)
            else Summary.Value(tag=key, simple_value=number(value, key))
            for key, value in row.items()
        ]
        self._add(step, summary=Summary(value=values))

    def end(self, status: str) -> None:
        """Append the end of the run."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.api_pb2 import Status as Ended
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        ended = SessionEndInfo(status=Ended.Value(status), end_time_secs=time.time())
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(HParamsPluginData(session_end_info=ended)),
            tensor=metadata.NULL_TENSOR,
        )
        self._add(self._start, summary=Summary(value=[value]))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(step=step, wall_time=time.time(), **content).SerializeToString()
        whole = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:  # opened for each event, so that no handle can go stale
                RecordWriter(file).write(event)
                file.flush()
                files.sync_file(file.fileno(), self.path)
        except BaseException:
            with suppress(OSError):  # the first error is raised
                os.truncate(self.path, whole)  # a reader stops at an incomplete event
            raise


def _histogram(counts: Mapping[float, float], key: str) -> Any:
    """Return a histogram with one bucket for each value, whose upper limit is the value."""
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto

    exact = sorted((number(value, key), number(count, key)) for value, count in counts.items())
    values = [value for value, _ in exact]
    return HistogramProto(
        min=min(values, default=0.0),
        max=max(values, default=0.0),
        num=sum(count for _, count in exact),
        sum=sum(value * count for value, count in exact),
        sum_squares=sum(value * value * count for value, count in exact),
        bucket_limit=values,
        bucket=[count for _, count in exact],
    )


def _steps(directory: Path) -> set[int]:
    """Return the steps that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    shown = set[int]()
    for path in sorted(directory.glob("*tfevents*")):
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("session_log"):
                shown = {step for step in shown if step < event.step}
            elif any(not value.tag.startswith("_hparams_") for value in event.summary.value):
                shown.add(event.step)
    return shown
