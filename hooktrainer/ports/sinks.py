"""Sinks, the destinations of rows, and the description of a run that they are opened with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs

from hooktrainer.errors import ConfigError
from hooktrainer.events import Status
from hooktrainer.metrics import STEP_KEY, Row


@attrs.frozen(kw_only=True)
class RunInfo:
    """The run that a sink is opened for."""

    _directory: Path | None = None
    name: str = "run"
    """`run.name` of the configuration."""
    id: str = "run"
    """Identifies the run in a tracker: the same after a resume, another one for another run of the same name."""
    config: Mapping[str, object] = attrs.field(factory=dict)
    """The configuration as plain data; empty for a trainer that was built without one."""
    resumed_step: int = 0
    """The complete step that the run resumes from; 0 for a new run."""
    start: int = 1
    """1 for the first start of the run, one more for every resume."""
    total_steps: int | None = None
    """None if the run lasts until its data ends."""
    iterations_per_step: int = 1
    """Local updates of a step, `trainer.parameter_sync_step`."""

    @property
    def directory(self) -> Path:
        """Return the run directory. Raises `ConfigError` if the run has none."""
        if self._directory is None:
            raise ConfigError("this run has no directory to write to; pass RunPlace(directory=...) to the Trainer")
        return self._directory


@runtime_checkable
class Sink(Protocol):
    """A destination for rows, such as a file, a terminal or an experiment tracker.

    A sink that YAML names is an attrs class, and its fields are the options: `{use: csv, critical: true}`. Its name is
    a registered one, `package.module:Class`, or `file.py:Class` relative to the YAML file.

    An error ends the run if the optional attribute `critical` is true. Otherwise the run drops the sink with a warning
    and continues. A `ConfigError` in `open`, such as a missing package, always ends the run, before any work.

    Rows have their step under `hooktrainer.metrics.STEP_KEY`. A sink that plots against a key states it in the optional
    attribute `step_key`; another key than this one is refused before the run starts.

    A resumed run opens a new sink in the same directory, also after a kill. `hooktrainer.testing.check_sink` checks
    that no row is lost.
    """

    def open(self, run: RunInfo) -> None:
        """Prepare for writing, and keep the rows of earlier processes. Raises an error if rows could not be written."""
        ...

    def write(self, step: int, row: Row) -> None:
        """Write one row, so that a killed process does not lose it; steps ascend, and rows may have new keys."""
        ...

    def close(self, status: Status) -> None:
        """Flush and release all resources. May be called twice, and before `open`."""
        ...


@runtime_checkable
class IterationSink(Sink, Protocol):
    """A sink that can also write the metrics of each local update, on an axis of their own."""

    per_iteration: bool
    """Whether it writes them."""

    def write_iteration(self, iteration: int, row: Row) -> None:
        """Write the metrics of one update of a complete step, before the row of that step.

        `iteration` counts the updates from 1: that of iteration j, from 0, of step k is (k - 1) x P + j + 1.
        """
        ...


@runtime_checkable
class SupportsInstallCheck(Protocol):
    """A sink that needs a package, so that a missing one is found by `hooktrainer plan`."""

    def check_installed(self) -> None:
        """Raise `ConfigError` with the command that installs the package, unless it is there; imports nothing large."""
        ...


def is_critical(sink: object) -> bool:
    """Return whether an error of this sink ends the run."""
    return bool(getattr(sink, "critical", False))


def step_key_fault(sink: object) -> str:
    """Return why a sink, or its class, expects the step under a key that rows do not have; empty if it does not."""
    key = getattr(sink, "step_key", STEP_KEY)
    if not isinstance(key, str) or key == STEP_KEY:  # the descriptor of a class with slots is no text
        return ""
    name = (sink if isinstance(sink, type) else type(sink)).__name__
    return f"the sink {name} expects the step of a row under '{key}', and rows have it under '{STEP_KEY}'; set that key"


@runtime_checkable
class RewindableSink(Sink, Protocol):
    """A sink whose rows a resumed run can replace; it calls `rewind` after `open`.

    If the resumed run has no step left, `rewind` is called only for a sink with the optional attribute `last_step`, the
    last step that has a row, and deletes nothing.
    """

    def rewind(self, step: int) -> Sequence[int]:
        """Delete all rows after `step` and return their steps in ascending order.

        A tracker that cannot delete rows starts a new run in the same group instead, with copies of the rows up to
        `step`, and returns no steps.
        """
        ...
