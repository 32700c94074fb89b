"""The MLflow sink: a database in the run directory, or a tracking server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import urlopen

import attrs

from hooktrainer.events import Status
from hooktrainer.metrics import Row, number
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.tracker import ITERATION, TrackerSink, flat_config, require_package

_ENDS: Final[Mapping[str, str]] = {"failed": "FAILED", "interrupted": "KILLED"}
"""MLflow's word for a status; `FINISHED` for the others."""
_REFUSED: Final = re.compile(r"[^/\w.\- :]")
"""Characters that names in MLflow cannot have."""
_LONGEST: Final = 6000
"""Characters of a parameter."""
_MANY: Final = 100
"""Parameters that one request may have."""
_REQUEST: Final[Mapping[str, str]] = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Limits of requests to a server. MLflow's own limits would block training for minutes while it is down."""


@attrs.define(kw_only=True)
class MlflowSink(TrackerSink):
    """Writes to MLflow: metrics, the configuration as parameters, and how the run ended. Histograms are left out.

    Without `tracking_uri` the store is `mlflow.db` in the run directory: `mlflow ui --backend-store-uri sqlite:///…`.
    """

    tracking_uri: str | None = None
    """Address of a tracking server or store; None for a SQLite database in the run directory."""
    experiment: str = "hooktrainer"
    """Name of the experiment; it is created if there is none."""
    _client: Any = attrs.field(default=None, init=False, repr=False)
    _id: str = attrs.field(default="", init=False, repr=False)

    def check_installed(self) -> None:
        """Raise `ConfigError` unless the packages mlflow and, for a database, sqlalchemy are installed."""
        require_package("mlflow", "mlflow")
        if self.tracking_uri is None:
            require_package("sqlalchemy", "mlflow")

    def begin(self, run: RunInfo, name: str, group: str) -> None:
        """Create a run with the configuration; its tag `hooktrainer.group` is the same for all starts."""
        for variable, limit in _REQUEST.items():
            os.environ.setdefault(variable, limit)
        if self.tracking_uri is not None and self.tracking_uri.startswith(("http://", "https://")):
            urlopen(f"{self.tracking_uri.rstrip('/')}/health", timeout=10).close()  # noqa: S310 (http, as checked)
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        with _without_progress():
            self._client = MlflowClient(tracking_uri=self.tracking_uri or f"sqlite:///{run.directory / 'mlflow.db'}")
            experiment = self._experiment(run)
            if run.start > 1:
                self._end_killed(experiment, run)
            tags = {"hooktrainer.group": group, "hooktrainer.id": run.id, "hooktrainer.start": name}
            self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        config = flat_config(run.config)
        params = [Param(_name(key), str(value)[:_LONGEST]) for key, value in config.items()]
        for first in range(0, len(params), _MANY):
            self._client.log_batch(self._id, params=params[first : first + _MANY])

    def add(self, step: int, row: Row) -> None:
        """Add a row in one request."""
        self._add(step, row, "")

    def add_iteration(self, iteration: int, row: Row) -> None:
        """Add the metrics of a local update in one request."""
        self._add(iteration, row, ITERATION)

    def _add(self, step: int, row: Row, prefix: str) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        values = {f"{prefix}{key}": number(value, key) for key, value in row.items() if not isinstance(value, Mapping)}
        self._client.log_batch(self._id, metrics=[Metric(_name(k), v, now, step) for k, v in values.items()])

    def end(self, status: Status) -> None:
        """Set the status of the run."""
        client, self._client = self._client, None
        client.set_terminated(self._id, status=_ENDS.get(status, "FINISHED"))

    def _end_killed(self, experiment: str, run: RunInfo) -> None:
        """Set the status of earlier starts that a kill left running."""
        mine = f"tags.`hooktrainer.id` = '{run.id}' and attributes.status = 'RUNNING'"
        for left in self._client.search_runs([experiment], filter_string=mine):
            self._client.set_terminated(left.info.run_id, status="KILLED")

    def _experiment(self, run: RunInfo) -> str:
        """Return the id of the experiment. The artifacts of a database are in the run directory too."""
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        place = None if self.tracking_uri is not None else (run.directory / "mlartifacts").as_uri()
        return str(self._client.create_experiment(self.experiment, artifact_location=place))


def _name(key: str) -> str:
    return _REFUSED.sub("_", key)


@contextmanager
def _without_progress() -> Iterator[None]:
    """Hide the messages about the tables of a new database."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
