"""Connection to Ray, which is started on this machine unless there is a cluster to join."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import ray
from ray import cloudpickle

from hooktrainer.errors import ConfigError, RolloutError, line_of

if TYPE_CHECKING:
    from hooktrainer.rollout.workers.messages import WorkerConfig

_LOG: Final = logging.getLogger("hooktrainer")
_FILE_MODULE: Final = "hooktrainer_file_"
"""Prefix of the names of modules that were loaded as `file.py:Class`."""
_QUIET: Final[dict[str, Any]] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Settings with which Ray writes little to the console of the run."""
_LONGEST_TEMP: Final = 35
"""Characters of a folder in which Ray can make sockets, whose paths may have 107."""
_SHORT_TEMP: Final = "/tmp/ray"  # noqa: S108 - the default of Ray


class Cluster:
    """Connects this process to Ray, and ends the Ray that it started. One that the user started is left running."""

    def __init__(self, address: str | None, workers: int, resources: Mapping[str, float]) -> None:
        """With no address, start Ray on this machine. Each worker needs these resources."""
        self._address = address
        self._workers = workers
        self._needed = {name: amount * workers for name, amount in resources.items()}
        self._is_ours = False

    def connect(self) -> None:
        """Connect, or start Ray on this machine. Raises `RolloutError` if that fails."""
        if not ray.is_initialized():
            try:
                with _handlers_kept():
                    self._start() if self._address is None else ray.init(address=self._address, **_QUIET)
            except Exception as error:
                here = "start on this machine"
                where = f"connect to the cluster {self._address} (rollout.address)" if self._address else here
                raise RolloutError(f"Ray could not {where}: {line_of(error)}") from error
            self._is_ours = True
        self._warn_of_missing()

    def disconnect(self) -> None:
        """End the connection that `connect` made, and the Ray that it started."""
        if self._is_ours:
            self._is_ours = False
            with _handlers_kept():
                ray.shutdown()

    def _start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns
        resources = {name: amount for name, amount in self._needed.items() if name != "CPU"}
        cpus = max(1, math.ceil(self._needed["CPU"]))
        long = len(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) > _LONGEST_TEMP
        folder: dict[str, Any] = {"_temp_dir": _SHORT_TEMP} if long else {}
        ray.init(address="local", num_cpus=cpus, resources=resources, include_dashboard=False, **folder, **_QUIET)

    def _warn_of_missing(self) -> None:
        found = ray.cluster_resources()
        missing = [
            f"{needed:g} {name} (it has {found.get(name, 0):g})"
            for name, needed in self._needed.items()
            if needed > found.get(name, 0)
        ]
        if missing:
            _LOG.warning(
                "%d workers need %s of the cluster: some wait until nodes join. Lower rollout.workers or "
                "rollout.num_cpus otherwise",
                self._workers,
                " and ".join(missing),
            )


def pack(config: WorkerConfig) -> bytes:
    """Pickle a configuration, with the code of scripts and of files that a node may not have.

    Raises `ConfigError` if a part cannot be pickled.
    """
    files = [module for name, module in list(sys.modules.items()) if name.startswith(_FILE_MODULE)]
    for module in files:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((sys.path, cloudpickle.dumps(config)))
    except Exception as error:
        raise ConfigError(
            f"model and task are sent to Ray actors, but cannot be pickled: {error}. Make locks, files and connections "
            "when they are first used, or use `rollout: {use: thread}`, which needs no pickling"
        ) from error
    finally:
        for module in files:
            cloudpickle.unregister_pickle_by_value(module)
    return packed


def unpack(packed: bytes) -> WorkerConfig:
    """Return the configuration, whose modules are also searched where the engine finds them."""
    paths, pickled = cloudpickle.loads(packed)
    sys.path += [path for path in paths if path not in sys.path]
    config: WorkerConfig = cloudpickle.loads(pickled)
    return config


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM that ends the run in order; Ray replaces it by one that exits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
