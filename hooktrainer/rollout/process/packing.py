"""Pickling of the configuration that a worker process starts with."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
from types import FunctionType
from typing import Any, Final

from hooktrainer.errors import ConfigError
from hooktrainer.rollout.process.main_module import is_importable, require_importable_main
from hooktrainer.rollout.workers.messages import WorkerConfig

_FILE_MODULE: Final = "hooktrainer_file_"
"""Prefix of the names of modules that were loaded as `file.py:Class`."""


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
    """Pack a configuration for `unpack` in a worker. Raises `ConfigError` if a part cannot be pickled."""
    require_importable_main()
    try:
        return _packed(config)
    except Exception as error:
        raise ConfigError(
            f"model and task are sent to worker processes, but cannot be pickled: {error}. Define classes and "
            "functions at the top level of a module or file, or use `rollout: {use: thread}`, which needs no pickling"
        ) from error


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


def _packed(config: WorkerConfig) -> bytes:
    target = io.BytesIO()
    packer = _Packer(target)
    packer.dump(config)
    return pickle.dumps((packer.files, target.getvalue()))
