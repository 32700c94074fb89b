"""Messages of a worker process, read without blocking."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

_CHUNK: Final = 1 << 18
_SHORT: Final = struct.Struct("!i")
_LONG: Final = struct.Struct("!Q")
"""Sizes of a message as `multiprocessing.connection` writes them: -1 and a long size, or a short size."""


class Inbox:
    """Reads a connection. A worker that stops or dies in the middle of a message does not block the reader."""

    def __init__(self, connection: Connection) -> None:
        self.hung_up = False
        """Whether the connection was closed."""
        self._connection = connection
        self._bytes = bytearray()

    def received(self) -> Iterator[object]:
        """Yield the complete messages that have arrived and were not read yet."""
        while self._read():
            while (message := self._next()) is not None:
                yield pickle.loads(message)  # noqa: S301 - sent by our own worker

    def _read(self) -> bool:
        """Append bytes that have arrived; return whether there were any."""
        try:
            chunk = os.read(self._connection.fileno(), _CHUNK) if self._connection.poll() else None
        except OSError:
            chunk = b""
        self.hung_up = self.hung_up or chunk == b""
        self._bytes += chunk or b""
        return bool(chunk)

    def _next(self) -> bytes | None:
        """Remove and return the first message; return None while it is incomplete."""
        start = _SHORT.size
        if len(self._bytes) < start:
            return None
        (size,) = _SHORT.unpack_from(self._bytes)
        if size == -1:
            start += _LONG.size
            if len(self._bytes) < start:
                return None
            (size,) = _LONG.unpack_from(self._bytes, _SHORT.size)
        if len(self._bytes) < start + size:
            return None
        message = bytes(self._bytes[start : start + size])
        del self._bytes[: start + size]
        return message
