"""The Weights & Biases sink: offline files, or a server."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal

import attrs
import numpy as np

from hooktrainer._util.durations import is_duration
from hooktrainer.events import Status
from hooktrainer.metrics import STEP_KEY, Row, number
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.tracker import ITERATION, TrackerSink, require_package

_LOG: Final = logging.getLogger("hooktrainer")
_SUCCEEDED: Final = ("completed", "already_done", "stopped")
_NUMBER: Final = f"{ITERATION}number"
"""Metric with the number of a local update."""
_FINISH_S: Final = 60.0
"""Seconds that the end of a run waits for its upload; `wandb sync` can upload the rest."""


@attrs.define(kw_only=True)
class WandbSink(TrackerSink):
    """Writes to Weights & Biases: scalars, histograms, the configuration and how the run ended.

    Files are in `wandb/` of the run directory; `wandb sync` uploads those of an offline run. If the server cannot be
    reached at the start, the run is offline.
    """

    project: str = "hooktrainer"
    """Name of the project."""
    entity: str | None = None
    """User or team that owns the project; None for the default of the account."""
    mode: Literal["offline", "online"] = "offline"
    """Whether rows are only written to files, or also sent to the server."""
    server_timeout_s: float = attrs.field(default=20.0, validator=is_duration)
    """Seconds to wait for the server at the start."""
    _axes: set[str] = attrs.field(factory=set, init=False, repr=False)
    """Metrics whose horizontal axis is defined."""
    _tracked: Any = attrs.field(default=None, init=False, repr=False)

    def check_installed(self) -> None:
        """Raise `ConfigError` unless the package wandb is installed."""
        require_package("wandb", "wandb")

    def begin(self, run: RunInfo, name: str, group: str) -> None:
        """Create a run with an id that is unique among all starts."""
        if self.mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an offline run sends nothing
        import wandb

        try:
            self._tracked = self._init(self.mode, run, name, group)
        except wandb.Error as error:
            if self.mode == "offline":
                raise
            text = "Weights & Biases cannot be reached (%s); the run is offline. Upload it later with `wandb sync %s`"
            _LOG.warning(text, str(error).partition("\n")[0], run.directory / "wandb")
            self._tracked = self._init("offline", run, f"{name}-offline", group)  # the first id is in use
        self._axes.clear()

    def add(self, step: int, row: Row) -> None:
        """Add a row; its histograms have one bin for each value."""
        # With updates, a step of wandb is no step of the run.
        self._log(_values(row), STEP_KEY, step=None if self.per_iteration else step)

    def add_iteration(self, iteration: int, row: Row) -> None:
        """Add the metrics of a local update, over the metric `iteration/number`."""
        self._log({f"{ITERATION}{key}": value for key, value in _values(row).items()} | {_NUMBER: iteration}, _NUMBER)

    def _log(self, values: Mapping[str, Any], axis: str, step: int | None = None) -> None:
        """Log values. Each metric is defined by its name at its first value, because patterns would overlap."""
        for key in values.keys() - self._axes - {axis}:
            self._tracked.define_metric(key, step_metric=axis)
        self._axes.update(values)
        self._tracked.log(dict(values), step=step)

    def end(self, status: Status) -> None:
        """Finish the run."""
        tracked, self._tracked = self._tracked, None
        tracked.finish(exit_code=0 if status in _SUCCEEDED else 1)

    def _init(self, mode: Literal["offline", "online"], run: RunInfo, name: str, group: str) -> Any:
        import wandb

        return wandb.init(
            project=self.project,
            entity=self.entity,
            name=run.name,
            id=name,
            group=group,
            config=dict(run.config),
            dir=run.directory,
            mode=mode,
            reinit="create_new",  # a plugin may have a run of its own
            settings=wandb.Settings(
                silent=True,
                console="off",  # standard output belongs to the sink console
                disable_git=True,
                init_timeout=self.server_timeout_s,
                finish_timeout=_FINISH_S,
            ),
        )


def _values(row: Row) -> dict[str, Any]:
    return {k: _histogram(v, k) if isinstance(v, Mapping) else number(v, k) for k, v in row.items()}


def _histogram(counts: Mapping[float, float], key: str) -> Any:
    """Return a histogram whose bins meet halfway between two values."""
    import wandb

    exact = sorted((number(value, key), number(count, key)) for value, count in counts.items())
    values = [value for value, _ in exact] or [0.0]
    middles = [(low + high) / 2 for low, high in pairwise(values)]
    first = middles[0] - values[0] if middles else 0.5
    last = values[-1] - middles[-1] if middles else 0.5
    return wandb.Histogram(
        np_histogram=(
            np.asarray([count for _, count in exact] or [0.0]),
            np.asarray([values[0] - first, *middles, values[-1] + last]),
        )
    )
