"""Messages are read as they arrive; an incomplete message blocks no reader."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from hooktrainer.rollout.process.inbox import Inbox


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    yield ours, theirs
    for end in (ours, theirs):
        if not end.closed:
            end.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    sent = [1, "two", b"3" * 30_000, None]
    for message in sent:
        theirs.send(message)

    assert list(inbox.received()) == sent
    assert list(inbox.received()) == []
    assert not inbox.hung_up


def test_an_incomplete_message_is_kept_until_the_rest_arrives(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    theirs.send("late")
    whole = os.read(ours.fileno(), 1000)
    for byte in whole[:-1]:
        os.write(theirs.fileno(), bytes([byte]))
        assert list(inbox.received()) == []
    os.write(theirs.fileno(), whole[-1:])

    assert list(inbox.received()) == ["late"]


def test_a_message_with_a_long_size_is_read(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    theirs.send("long")
    pickled = os.read(ours.fileno(), 1000)[4:]
    # `Connection.send` uses this form for messages of more than 2 GB.
    os.write(theirs.fileno(), struct.pack("!i", -1))
    assert list(inbox.received()) == []
    os.write(theirs.fileno(), struct.pack("!Q", len(pickled)) + pickled)

    assert list(inbox.received()) == ["long"]


def test_a_connection_that_is_closed_in_the_middle_of_a_message_is_hung_up(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    theirs.send("whole")
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
    theirs.close()

    assert list(inbox.received()) == ["whole"]
    assert inbox.hung_up


class Recorder(Connection):
    """Records the bytes that the library would write, without the payload of a message that is only a size."""

    def __init__(self) -> None:
        super().__init__(os.open(os.devnull, os.O_RDWR))
        self.written = b""

    def _send(self, buffer: object) -> None:
        if not isinstance(buffer, Size):
            self.written += bytes(buffer)


class Size:
    """Stands in for a message of a size that a test cannot allocate."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def header_of_the_library(size: int) -> bytes:
    with Recorder() as recorder:
        recorder._send_bytes(Size(size))
        return recorder.written


@pytest.mark.parametrize("size", [20_000, 2**31 - 1, 2**31, 2**32 + 7, 2**40])
def test_the_header_that_the_library_writes_is_understood(size: int, ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    header, message = header_of_the_library(size), pickle.dumps("the message")
    sizes = {struct.pack("!i", size) if size < 2**31 else b"": "!i", struct.pack("!Q", size): "!Q"}
    (form,) = [form for packed, form in sizes.items() if packed and header.endswith(packed)]
    shortened = header.removesuffix(struct.pack(form, size)) + struct.pack(form, len(message))

    os.write(theirs.fileno(), shortened + message)
    assert ours._recv_bytes().getvalue() == message  # the library reads its own form
    os.write(theirs.fileno(), shortened + message)
    assert list(inbox.received()) == ["the message"]
    os.write(theirs.fileno(), header)  # a message of this size is expected
    os.write(theirs.fileno(), message)
    assert list(inbox.received()) == []


@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 16_385, 60_000])
def test_messages_that_the_library_writes_are_read_as_the_library_reads_them(
    size: int, ends: tuple[Connection, Connection]
) -> None:
    ours, theirs = ends
    inbox = Inbox(ours)
    theirs.send(b"x" * size)
    assert ours.recv() == b"x" * size
    theirs.send(b"x" * size)
    assert list(inbox.received()) == [b"x" * size]
