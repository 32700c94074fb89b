"""The format of a data file, by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from hooktrainer.errors import ConfigError, did_you_mean
from hooktrainer.tasks.files.arrow_table import ArrowTable, first_arrow_row
from hooktrainer.tasks.files.csv_table import CsvTable, first_csv_record
from hooktrainer.tasks.files.json_lines import JsonLines, first_json_line
from hooktrainer.tasks.files.rows import Rows

Found = TypeVar("Found")
_Open = Callable[[Path], Rows]
_First = Callable[[Path], dict[str, Any] | None]
_JSON: Final[tuple[_Open, _First]] = (JsonLines, first_json_line)
_FORMATS: Final[dict[str, tuple[_Open, _First]]] = {
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".json": _JSON,
    ".csv": (CsvTable, first_csv_record),
    ".parquet": (ArrowTable, first_arrow_row),
    "": (ArrowTable, first_arrow_row),
}
"""How to open a file with each ending, and a folder."""


def open_rows(path: Path) -> Rows:
    """Return the rows of a file or folder. Raises `ConfigError` with the place of the first row that is unusable."""
    return _readable(path, _format(path)[0])


def first_row(path: Path) -> dict[str, Any]:
    """Return the first row, without reading the rest. Raises `ConfigError` if there is none."""
    row = _readable(path, _format(path)[1])
    if row is None:
        raise ConfigError(f"{path} has no rows")
    return row


def _readable(path: Path, read: Callable[[Path], Found]) -> Found:
    try:
        return read(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


def _format(path: Path) -> tuple[_Open, _First]:
    if not path.exists():
        siblings = [other.name for other in path.parent.glob("*") if other.name != path.name]
        text = (
            f"there is no file {path}; a relative path starts at the folder of the YAML file, or the working directory"
        )
        raise ConfigError(f"{text}.{did_you_mean(path.name, siblings)}")
    suffix = "" if path.is_dir() else path.suffix.lower()
    if suffix not in _FORMATS or (not suffix and not path.is_dir()):
        endings = ", ".join(filter(None, _FORMATS))
        text = f"{path} has an unknown format; it must end in {endings}, or be a folder written by `save_to_disk`"
        raise ConfigError(text)
    return _FORMATS[suffix]
