"""JSONL files: one JSON object per line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hooktrainer.errors import ConfigError, shortened
from hooktrainer.tasks.files.rows import digest_of_bytes

_BOM = b"\xef\xbb\xbf"
_ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _RowError(ValueError):
    """The line is valid JSON, but its data would be lost or changed."""


class JsonLines:
    """The bytes of a file, and where each line starts. A line is parsed when it is read."""

    def __init__(self, path: Path) -> None:
        """Read the file."""
        self._path = path
        self._bytes = path.read_bytes()
        self.digest = digest_of_bytes(self._bytes)
        starts = [0, *_places(self._bytes, b"\n")]
        ends = [*starts[1:], len(self._bytes)]
        filled = [index for index, (a, b) in enumerate(zip(starts, ends, strict=True)) if self._bytes[a:b].strip()]
        self._lines = np.array(filled, dtype=np.int64)
        self._spans = np.array([(starts[index], ends[index]) for index in filled], dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._parse(number)

    def select(self, columns: Collection[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 (a line is parsed whole)
        """Yield each row. Raises `ConfigError` with the first line that is no JSON object."""
        return (self._parse(number) for number in range(len(self)))

    def place(self, number: int) -> str:
        """Return the line of a row."""
        return f"{self._path}, line {self._lines[number] + 1}"

    def _parse(self, number: int) -> dict[str, Any]:
        start, end = self._spans[number].tolist()
        return parsed(self._bytes[start:end], self.place(number))


def first_json_line(path: Path) -> dict[str, Any] | None:
    """Return the first row of a file; None if it has none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                return parsed(line, f"{path}, line {number}")
    return None


def parsed(line: bytes, place: str) -> dict[str, Any]:
    """Return the JSON object in a line. Raises `ConfigError` with its place."""
    try:
        found = json.loads(line.removeprefix(_BOM).decode(), object_pairs_hook=_object)
        if _ESCAPED_SURROGATE.search(line):
            _require_characters(found)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8 text: {error.reason} at byte {error.start} of the line") from None
    except _RowError as error:
        raise ConfigError(f"{place}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{place}: not valid JSON: {error}. Each line must be one JSON object{_hint(line)}") from None
    except RecursionError:
        raise ConfigError(f"{place}: the JSON object is nested too deeply") from None
    if not isinstance(found, dict):
        text = f'{place}: expected a JSON object such as {{"prompt": ...}}, found {shortened(repr(found), 80)}'
        raise ConfigError(text + _hint(line))
    return found


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `_RowError` for a key that occurs twice, of which JSON would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RowError(f"the JSON object has the key {shortened(repr(repeated), 80)} twice. Remove one of them")
    return found


def _require_characters(value: Any) -> None:
    """Raise `_RowError` for a text with half of a surrogate pair, which no tokenizer and no file accepts."""
    if isinstance(value, dict):
        _require_characters([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _require_characters(item)
    elif isinstance(value, str) and (half := _SURROGATE.search(value)):
        text = f"the text {shortened(repr(value), 80)} has half of a surrogate pair, {half.group()!r}"
        raise _RowError(f"{text}, which is no character. Write the whole pair, or remove it")


def _hint(line: bytes) -> str:
    is_array = line.removeprefix(_BOM).lstrip().startswith(b"[")
    return ". If the file is one JSON array, write each of its items as a line" if is_array else ""


def _places(text: bytes, byte: bytes) -> list[int]:
    """Return the places after each occurrence of a byte."""
    found = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == byte[0]) + 1
    return [int(place) for place in found if place < len(text)]
