"""Read the offline files of Weights & Biases: a log in the format of LevelDB with one protobuf record per entry."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from wandb.proto.wandb_internal_pb2 import Record

_BLOCK = 32768
_HEADER = 7
_LAST_PART = (1, 4)
"""Types of an entry that ends with this part: whole, or the last of several."""


@attrs.define
class OfflineRun:
    """The content of one offline file."""

    id: str = ""
    group: str = ""
    config: dict[str, Any] = attrs.field(factory=dict)
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    axes: dict[str, str] = attrs.field(factory=dict)
    """The metric on the horizontal axis, by metric."""
    exit_code: int | None = None


def offline_runs(run: Path) -> list[OfflineRun]:
    """Return the runs in `wandb/` of a run directory, oldest first."""
    found = sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [_read(path) for path in found]


def _read(path: Path) -> OfflineRun:
    run = OfflineRun()
    for entry in _entries(path.read_bytes()):
        record = Record.FromString(entry)
        if record.HasField("run"):
            run.id, run.group = record.run.run_id, record.run.run_group
            run.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif record.HasField("history"):
            items = record.history.item
            run.rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif record.HasField("metric"):
            run.axes[record.metric.name] = record.metric.step_metric
        elif record.HasField("exit"):
            run.exit_code = record.exit.exit_code
    return run


def _entries(data: bytes) -> Iterator[bytes]:
    at, entry = _HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        entry += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in _LAST_PART:
            yield entry
            entry = b""
