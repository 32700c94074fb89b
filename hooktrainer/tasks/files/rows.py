"""The interface of an open data file, and the checksum of its content."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import xxhash

_BLOCK: Final = 1 << 22


class Rows(Protocol):
    """The rows of a data file. They are held once, in the form of the file, and converted when they are read."""

    @property
    def digest(self) -> str:
        """Checksum of the content."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a row by its number, from 0, as plain JSON values."""
        ...

    def select(self, columns: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield each row with at least these of its columns, in the order of the file."""
        ...

    def place(self, number: int) -> str:
        """Return where a row is, for messages."""
        ...


def digest_of_files(paths: list[Path]) -> str:
    """Return the checksum of the content of files, in their order."""
    state = xxhash.xxh3_128()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                state.update(block)
    return str(state.hexdigest())


def digest_of_bytes(content: bytes) -> str:
    """Return the checksum of the content of one file."""
    return str(xxhash.xxh3_128(content).hexdigest())
