"""CSV files with a header line. Every value is text, since `007` and `7` may be different answers."""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hooktrainer.errors import ConfigError
from hooktrainer.tasks.files.rows import digest_of_files


class CsvTable:
    """The records of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `ConfigError` with the first line that does not fit the header."""
        self._path = path
        self.digest = digest_of_files([path])
        self._records = list(_records(path))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return dict(self._records[number][1])

    def select(self, columns: Collection[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 (the row is at hand)
        """Yield each row."""
        return (record for _, record in self._records)

    def place(self, number: int) -> str:
        """Return the line in which a row ends."""
        return f"{self._path}, line {self._records[number][0]}"


def first_csv_record(path: Path) -> dict[str, Any] | None:
    """Return the first row of a file; None if it has none."""
    return next((record for _, record in _records(path)), None)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the values of each record."""
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            if repeated := sorted({name for name in header if header.count(name) > 1}):
                raise ConfigError(f"{path}, line 1: the header has the column {repeated[0]!r} twice")
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    text = f"{len(values)} values, but the header has {len(header)} columns"
                    raise ConfigError(f"{path}, line {reader.line_num}: {text}. Quote values that contain a comma")
                yield reader.line_num, dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise ConfigError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None
        except UnicodeDecodeError:
            raise _not_text(path) from None


def _not_text(path: Path) -> ConfigError:
    """Return the error for the first byte that is not UTF-8; the reader decodes text ahead of its line."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line, column = content.count(b"\n", 0, error.start) + 1, error.start - content.rfind(b"\n", 0, error.start) - 1
        return ConfigError(f"{path}, line {line}: not UTF-8 text: {error.reason} at byte {column} of the line")
    return ConfigError(f"{path} was changed while it was read. Start again")
