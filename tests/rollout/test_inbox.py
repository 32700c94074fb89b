"""Messages are read as they arrive; an incomplete message blocks no reader."""

from __future__ import annotations

import os
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
