"""Sinks of experiment trackers: the package, the flat configuration, and a new run for every start."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Final

import attrs

from hooktrainer.errors import ConfigError, RecordError
from hooktrainer.events import Status
from hooktrainer.metrics import Row
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.earlier_rows import earlier_rows

ITERATION: Final = "iteration/"
"""Prefix of the metrics of local updates."""


@attrs.define(kw_only=True)
class TrackerSink:
    """A tracker that cannot delete rows: each start of a run is a run of the tracker, and all are in one group.

    A start that resumes copies the rows up to its checkpoint from `metrics.jsonl`, so that the newest run has all rows.
    """

    critical: bool = False
    """Whether an error ends the run. If not, the sink is dropped with a warning."""
    per_iteration: bool = False
    """Whether the metrics of each local update are written too, as `iteration/…` over their number.

    After a resume, those before the checkpoint are in the run of the earlier start."""
    _run: RunInfo | None = attrs.field(default=None, init=False, repr=False)
    _begun: bool = attrs.field(default=False, init=False, repr=False)

    @abstractmethod
    def check_installed(self) -> None:
        """Raise `ConfigError` unless the package of the tracker is installed."""

    @abstractmethod
    def begin(self, run: RunInfo, name: str, group: str) -> None:
        """Create a run of the tracker. `name` is unique among all starts of all runs, `group` is the same for a run."""

    @abstractmethod
    def add(self, step: int, row: Row) -> None:
        """Add a row to the run."""

    @abstractmethod
    def add_iteration(self, iteration: int, row: Row) -> None:
        """Add the metrics of a local update to the run, with the prefix `ITERATION`."""

    @abstractmethod
    def end(self, status: Status) -> None:
        """End the run, and release all resources."""

    def open(self, run: RunInfo) -> None:
        """Begin a run, unless this start resumes: it begins one in `rewind`, and none if no step is left."""
        self.check_installed()
        self.close("stopped")
        self._run = run
        if not run.resumed_step:
            self._begin()

    def write(self, step: int, row: Row) -> None:
        """Write a row."""
        self._begin()
        self.add(step, row)

    def write_iteration(self, iteration: int, row: Row) -> None:
        """Write the metrics of a local update."""
        self._begin()
        self.add_iteration(iteration, row)

    def rewind(self, step: int) -> Sequence[int]:
        """Begin a run with copies of the rows up to `step`. Return no steps, since the new run has no later ones."""
        if not self._begun and self._run is not None:
            self._begin()
            for earlier, row in earlier_rows(self._run.directory, step, type(self).__name__):
                self.add(earlier, row)
        return ()

    def close(self, status: Status) -> None:
        """End the run."""
        begun, self._begun = self._begun, False
        if begun:
            self.end(status)

    def _begin(self) -> None:
        if self._run is None:
            raise RecordError(f"{type(self).__name__} is not open")
        if not self._begun:
            run = self._run
            self.begin(run, run.id if run.start == 1 else f"{run.id}-{run.start}", f"{run.name}-{run.id}")
            self._begun = True


def require_package(module: str, sink: str) -> None:
    """Raise `ConfigError` with the command that installs the extra named `sink`, unless the module is installed."""
    found = find_spec(module)
    if found is None or found.origin is None:  # a folder of this name is no package
        text = f"the sink {sink} needs {module}, which is not installed: pip install 'hooktrainer[{sink}]'"
        raise ConfigError(text)


def flat_config(config: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    """Return the configuration with dotted keys. Lists are text, except the plugins, which are keyed by their names."""
    return dict(_flat(config, ""))


def _flat(value: object, address: str) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{address}.{key}" if address else str(key))
    elif address == "plugins" and isinstance(value, list):
        for item in value:
            options = {key: option for key, option in item.items() if key not in {"use", "name"}}
            name = item.get("name") or item["use"]
            yield from _flat({"use": item["use"], **options}, f"plugins.{name.rpartition(':')[2]}")
    else:
        yield address, value if isinstance(value, (str, int, float)) else json.dumps(value)
