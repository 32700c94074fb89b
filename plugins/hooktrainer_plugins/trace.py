"""Write what the loop, its handlers and the workers did when, for a trace viewer."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from attrs.validators import gt, le

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, FitStart, StepStart
from hooktrainer.plugin import port
from hooktrainer.ports import RunState, Span, Timeline

_LOG: Final = logging.getLogger("hooktrainer")
_END: Final = b"\n]\n"


@attrs.define(kw_only=True)
class Trace(Plugin):
    """Write a timeline of the run to `trace.json` in the run directory, which Perfetto and `chrome://tracing` open.

    It has a track for the loop, with its steps, signals and handlers, for each worker, and for weight syncs. Labels
    have the versions that a group was sampled from. The spans of a step are written at the start of the next one. A run
    that was killed leaves a file without a closing bracket, which these viewers accept. A resumed run writes
    `trace-2.json`. If the file cannot be written, the run continues without it.
    """

    max_mb: float = attrs.field(default=64.0, converter=float, validator=[gt(0.0), le(2.0**20)])
    """Size of the file in MiB, at which the timeline ends."""

    timeline: Timeline = port()
    run: RunState = port()

    _file: Path | None = attrs.field(default=None, init=False, repr=False)
    _free: int = attrs.field(default=0, init=False, repr=False)  # bytes left
    _began: float | None = attrs.field(default=None, init=False, repr=False)  # time of the first span
    _tracks: dict[str, int] = attrs.field(factory=dict, init=False, repr=False)  # numbers of tracks

    @on(FitStart, priority=Priority.PREPARE)
    def open(self, _event: FitStart) -> None:
        """Create the file, and keep spans from here on."""
        if self.run.directory is None:
            return
        try:
            self.run.directory.mkdir(parents=True, exist_ok=True)
            self._file = _create(self.run.directory)
        except OSError as error:
            _LOG.warning("the trace cannot be written: %s. The run continues without it", error)
            return
        self._free = int(self.max_mb * 2**20) - len(_END)
        self._append([{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": self.run.info.name}}], first=True)
        self.timeline.keep()

    @on(StepStart, priority=Priority.PREPARE)
    def write(self, _event: StepStart) -> None:
        """Write the spans of the step before."""
        self._write()

    @on(FitEnd, priority=Priority.CLEANUP + 50)
    def close(self, _event: FitEnd) -> None:
        """Write the last spans, and the end of the file."""
        self._write()
        if self.timeline.lost:
            _LOG.warning("%s lacks %d spans of steps with too many of them", self._file, self.timeline.lost)
        self._end()

    def _write(self) -> None:
        spans = self.timeline.take()
        if self._file is not None and spans:
            self._append(list(self._events(spans)))

    def _events(self, spans: Sequence[Span]) -> Iterator[Mapping[str, Any]]:
        """Yield the events of spans in the order of their start, outer ones first."""
        if self._began is None:
            self._began = min(span.start for span in spans)
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            if span.track not in self._tracks:
                self._tracks[span.track] = number = len(self._tracks) + 1
                labels: Mapping[str, Any] = {"name": span.track}
                yield {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": labels}
                labels = {"sort_index": number}
                yield {"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": number, "args": labels}
            start, end = (max(0, round((time - self._began) * 1e6)) for time in (span.start, span.end))
            yield {
                "name": _title(span),
                "ph": "X",
                "pid": 1,
                "tid": self._tracks[span.track],
                "ts": start,
                "dur": end - start,
                "args": span.labels,
            }

    def _append(self, events: Sequence[Mapping[str, Any]], *, first: bool = False) -> None:
        """Append events in one write, as far as the size of the file allows."""
        lines = [json.dumps(event, separators=(",", ":")).encode() for event in events]
        data = b"".join((b"[\n" if first and not place else b",\n") + line for place, line in enumerate(lines))
        if len(data) > self._free:
            _LOG.warning("%s has reached max_mb = %g; it ends here", self._file, self.max_mb)
            self._end()
            return
        self._free -= len(data)
        self._put(data)

    def _end(self) -> None:
        self._put(_END)
        self._file = None

    def _put(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            with self._file.open("ab", buffering=0) as file:
                file.write(data)
        except OSError as error:
            _LOG.warning("%s cannot be written: %s. The run continues without it", self._file, error)
            self._file = None


def _create(directory: Path) -> Path:
    """Create the first of `trace.json`, `trace-2.json` and so on that does not exist."""
    number = 1
    while True:
        path = directory / ("trace.json" if number == 1 else f"trace-{number}.json")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            number += 1
        else:
            return path


def _title(span: Span) -> str:
    """Return the name of a span with its version or step."""
    first, last = span.labels.get("version"), span.labels.get("last_version")
    if last is not None:
        return f"{span.name} v{first}" if first == last else f"{span.name} v{first}-{last}"
    return f"{span.name} {span.labels['step']}" if "step" in span.labels else span.name
