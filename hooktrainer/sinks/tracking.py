"""What the sinks of experiment trackers share: packages, the flat configuration, and rows of earlier starts."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hooktrainer.errors import ConfigError
from hooktrainer.metrics import STEP_KEY, Row
from hooktrainer.sinks.jsonl import FILE
from hooktrainer.sinks.stored_rows import StoredRow

_LOG: Final = logging.getLogger("hooktrainer")


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


def earlier_rows(directory: Path, step: int, tracker: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows up to `step` from `metrics.jsonl`, with histograms as `write` gets them.

    Warn if the file does not have all of them.
    """
    found: dict[int, Row] = {}
    try:
        lines = (directory / FILE).read_bytes().splitlines(keepends=True)
    except OSError:
        lines = []
    for line in lines:
        try:
            stored = StoredRow.of(line)
        except ValueError:  # the sink jsonl reports it
            continue
        if stored.step <= step:
            found[stored.step] = _row(json.loads(stored.text))
    if len(found) < step:
        text = "%s starts without %d of the %d rows before the checkpoint: they are not in %s. Add the sink jsonl"
        _LOG.warning(text, tracker, step - len(found), step, directory / FILE)
    for at in sorted(found):
        yield at, {**found[at], STEP_KEY: at}


def _row(stored: Mapping[str, float | None]) -> Row:
    """Return a stored row with NaN for null, and one mapping for the keys `<name>/<value>` of a histogram."""
    values = {key: math.nan if value is None else value for key, value in stored.items() if key != "step"}
    row: dict[str, Any] = {}
    for key, value in values.items():
        if name := _histogram(key):
            row.setdefault(name, {})[float(key.rpartition("/")[2])] = value
        else:
            row[key] = value
    return row


def _histogram(key: str) -> str:
    """Return the name of the histogram that a key of the file belongs to; empty for a scalar."""
    name, _, last = key.rpartition("/")
    try:
        float(last)
    except ValueError:
        return ""
    return name
