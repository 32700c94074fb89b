"""The files of a run directory, read from outside: also of a run that is active, was killed, or has no row yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import attrs

from hooktrainer.errors import ConfigError
from hooktrainer.run import record, rows
from hooktrainer.run.record import RunRecord
from hooktrainer.run.rows import StoredMetrics
from hooktrainer.run.settings import settings_of

SAMPLES: Final = "samples.jsonl"


@attrs.frozen(kw_only=True)
class RunHistory:
    """The files of a run: its starts, metrics, configuration, plan and samples."""

    directory: Path
    record: RunRecord | None
    """None if the directory has none that can be read."""
    metrics: StoredMetrics
    config: str = ""
    """The text of `config.yaml`; empty if there is none."""
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    """The settings of `config.yaml` by address."""
    plan: str = ""
    """The text of `plan.txt`; empty if there is none."""
    samples: Sequence[Mapping[str, Any]] = ()
    """The objects in `samples.jsonl`."""
    faults: Sequence[str] = ()
    """What could not be read."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a run directory. Raises `ConfigError` if it is none."""
        if not directory.is_dir():
            raise ConfigError(f"there is no directory {directory}. Name a run directory, such as runs/quickstart")
        if not any((directory / name).is_file() for name in (record.FILE, rows.FILE)):
            text = f"{directory} has neither {record.FILE} nor {rows.FILE}, so it is not the directory of a run"
            near = sorted(path.parent.name for path in directory.glob(f"*/{record.FILE}"))
            raise ConfigError(f"{text}; its runs are {', '.join(near)}" if near else text)
        faults: list[str] = []
        config = _text(directory / "config.yaml", faults)
        settings: Mapping[str, Any] = {}
        try:
            settings = settings_of(config) if config else {}
        except ValueError as error:
            faults.append(f"config.yaml cannot be read: {error}")
        return cls(
            directory=directory,
            record=_record(directory, faults),
            metrics=_metrics(directory, faults),
            config=config,
            settings=settings,
            plan=_text(directory / "plan.txt", faults),
            samples=_samples(directory, faults),
            faults=faults,
        )

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.directory.absolute().name

    @property
    def state(self) -> str:
        """The state of the last start; `unknown` without a record."""
        return self.record.starts[-1].state if self.record else "unknown"

    @property
    def reason(self) -> str:
        """Why the run ended; empty if it is not known."""
        end = self.record and self.record.starts[-1].end
        return str(end["reason"]) if end else ""

    @property
    def seconds(self) -> float:
        """Seconds of all starts; the sum of the time per step where the end of one is not recorded."""
        ends = [start.end for start in self.record.starts] if self.record else [None]
        if all(ends):
            return sum(float(end["seconds"]) for end in ends if end)
        steps = self.metrics.columns.get("timing_s/step")
        return float(steps.finite.values.sum()) if steps else 0.0


def _record(directory: Path, faults: list[str]) -> RunRecord | None:
    try:
        return RunRecord.read(directory)
    except FileNotFoundError:
        faults.append(f"there is no {record.FILE}, so that starts and end are unknown")
    except (OSError, ValueError) as error:
        faults.append(f"the record of the run cannot be read: {error}")
    return None


def _metrics(directory: Path, faults: list[str]) -> StoredMetrics:
    try:
        found = StoredMetrics.read(directory)
    except OSError as error:
        faults.append(f"{rows.FILE} cannot be read: {error.strerror}")
        return StoredMetrics()
    if found.unreadable:
        faults.append(f"{_lines(found.unreadable)} of {rows.FILE} cannot be read")
    return found


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}{', …' if len(numbers) > 5 else ''}"


def _text(path: Path, faults: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        faults.append(f"{path.name} cannot be read: {error.strerror}")
        return ""


def _samples(directory: Path, faults: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    unreadable: list[int] = []
    # Text after the last line feed is a line that the run is writing, or was killed at.
    for number, line in enumerate(_text(directory / SAMPLES, faults).split("\n")[:-1], start=1):
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            sample = None
        if isinstance(sample, dict):
            found.append(sample)
        else:
            unreadable.append(number)
    if unreadable:
        faults.append(f"{_lines(unreadable)} of {SAMPLES} cannot be read")
    return found
