"""The connections between rank 0 and its followers: TCP, with a secret that only the ranks of this run know.

A collective has a time limit and cannot be interrupted. A follower must wait without limit while rank 0 samples, and
notice at once that rank 0 has died. A connection does both: the system closes it with the process, and keepalive
packets notice that a machine has died.
"""

from __future__ import annotations

import pickle
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from time import monotonic
from typing import Any, Final, Self

import attrs

from hooktrainer.errors import RankError

_HANDSHAKE_S: Final = 10.0
"""Seconds for each message of a handshake. A foreign process that connects and is silent is dropped after them."""
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 4, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 4}
"""Seconds of silence, then probes, after which the other machine is dead: 8 s."""


@attrs.frozen
class Address:
    """Where followers connect to, and the secret that they must know."""

    host: str
    port: int
    secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(32), repr=False)


@attrs.frozen(eq=False)
class Listener:
    """The socket of rank 0 that followers connect to."""

    socket: socket.socket
    address: Address

    @classmethod
    def at(cls, host: str) -> Self:
        """Listen on a free port, only on this machine if `host` is this machine's loopback address."""
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        local = str(place[0]) == "::1" or str(place[0]).startswith("127.")
        bound = str(place[0]) if local else ""
        listening = socket.create_server((bound, 0), family=family, backlog=128)
        return cls(listening, Address(host, listening.getsockname()[1]))

    def connections(self, ranks: int, limit_s: float) -> Mapping[int, tuple[Connection, Any]]:
        """Return the connection and the first message of each follower. Raises `RankError` after `limit_s` seconds."""
        found: dict[int, tuple[Connection, Any]] = {}
        deadline = monotonic() + limit_s
        try:
            while len(found) < ranks - 1:
                self.socket.settimeout(max(0.01, deadline - monotonic()))
                arrived, _ = self.socket.accept()
                with suppress(OSError, EOFError, AuthenticationError):  # a process that is none of the ranks
                    connection = _connection(arrived)
                    with _limited(connection, _HANDSHAKE_S):
                        deliver_challenge(connection, self.address.secret)
                        rank, message = receive(connection)
                    found[rank] = connection, message
        except TimeoutError:
            missing = ", ".join(str(rank) for rank in range(1, ranks) if rank not in found)
            text = f"rank {missing} did not connect to rank 0 at {self.address.host} within {limit_s:g} s"
            raise RankError(f"{text}. A firewall may block port {self.address.port}") from None
        finally:
            self.socket.close()
        return found


def connect(address: Address, rank: int, message: object, limit_s: float) -> Connection:
    """Connect to rank 0 and send a first message. Raises `RankError` if rank 0 cannot be reached."""
    try:
        connection = _connection(socket.create_connection((address.host, address.port), timeout=limit_s))
        with _limited(connection, limit_s):
            answer_challenge(connection, address.secret)
            send(connection, (rank, message))
    except (OSError, EOFError, AuthenticationError) as error:
        text = f"rank {rank} cannot connect to rank 0 at {address.host}, port {address.port}: {error}"
        raise RankError(text) from error
    return connection


def send(connection: Connection, message: object) -> None:
    """Send an object. `Connection.send` would send tensors by shared memory, which ends at this machine."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Receive an object that a rank of this run sent."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 (the sender knows the secret)


def limit_sends(connection: Connection, seconds: float) -> None:
    """Let a send fail that makes no progress for some seconds, since the receiver is stopped."""
    _set_timeout(connection, socket.SO_SNDTIMEO, seconds)


def _connection(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(connected.detach())


@contextmanager
def _limited(connection: Connection, seconds: float) -> Iterator[None]:
    """Limit each wait for data within the block."""
    _set_timeout(connection, socket.SO_RCVTIMEO, seconds)
    yield
    _set_timeout(connection, socket.SO_RCVTIMEO, 0.0)


def _set_timeout(connection: Connection, option: int, seconds: float) -> None:
    with socket.socket(fileno=connection.fileno()) as shared:
        try:
            shared.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000)))
        finally:
            shared.detach()
