"""All servers of an engine: distributes groups over them, and drops those that cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from hooktrainer.errors import RolloutError, line_of
from hooktrainer.ports import Floats, ReplayBuffer, Tokens
from hooktrainer.rollout.engine import listed_groups
from hooktrainer.rollout.server.errors import ServerGoneError
from hooktrainer.rollout.server.inference_server import InferenceServer
from hooktrainer.rollout.server.options import ServingOptions
from hooktrainer.rollout.server.request_loop import RequestLoop
from hooktrainer.rollout.server.requests import Requests

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.turns import Turns

_LOG: Final = logging.getLogger("hooktrainer")
_T = TypeVar("_T")


class ServerPool:
    """Asks all servers in the event loop of a thread. Call its methods on the loop's thread of the trainer."""

    def __init__(self, options: ServingOptions, *, eos_ids: frozenset[int], max_length: int) -> None:
        self.options: Final = options
        self._eos_ids = eos_ids
        self._max_length = max_length
        self._servers: list[InferenceServer] = []
        self._requests: Requests | None = None
        self._lock = threading.Lock()
        self._dropped = 0
        self.loop: Final = RequestLoop()

    def start(self, buffer: ReplayBuffer) -> None:
        """Open the event loop; an error that ends generation closes the buffer."""
        self._open()
        self.loop.on_failure = buffer.close  # wakes the loop of the trainer

    @property
    def requests(self) -> Requests:
        """The requests in flight."""
        assert self._requests is not None
        return self._requests

    @property
    def live(self) -> Sequence[InferenceServer]:
        """The servers that have the weights in use, and can be reached; may be read by any thread."""
        return [server for server in self._servers if server.live]

    def pause(self) -> None:
        """Begin no request until `resume`. With `on_sync: finish`, return once none is in flight."""
        if self._requests is not None:
            self.loop.run(self.requests.hold)

    def load(self, version: int, folder: Path, label: str) -> None:
        """Let every server load a folder, also those that were dropped and can be reached again."""
        self._open()
        self.loop.run(lambda: self._load(version, folder, label))

    def forget(self) -> None:
        """Use no server until the next `load`."""
        self.loop.run(self._forget)

    def resume(self) -> None:
        """Begin requests again."""
        self.loop.run(self.requests.open)

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probabilities of a text from every live server, (L,) -> (R, L - 1)."""
        rows = self.loop.run(lambda: self._on_live(lambda server: server.logprobs(tokens)))
        return np.stack(rows)

    def answer(self, requests: Sequence[Request], turns: Turns | None) -> None:
        """Complete requests on all live servers, also while paused."""
        self.loop.run(lambda: self._answer(requests, turns))

    def describe(self, group: int | None) -> str:
        """Describe the server of a group, or with None all servers that have groups; takes no lock."""
        servers = [(server, sorted(server.groups)) for server in list(self._servers)]
        chosen = [(server, own) for server, own in servers if (own if group is None else group in own)]
        return ", ".join(f"the {server} has {listed_groups(own)}" for server, own in chosen)

    def take_dropped(self) -> int:
        """Return the number of servers that were dropped since the last call."""
        with self._lock:
            taken, self._dropped = self._dropped, 0
        return taken

    def drop(self, server: InferenceServer, error: BaseException) -> None:
        """Use a server no longer, and fail the run if none is left. Call it in the event loop."""
        if not server.live:
            return
        server.drop()
        with self._lock:
            self._dropped += 1
        if self.live:
            _LOG.warning("%s; it is dropped until a weight sync reaches it", error)
        else:
            self.loop.fail(_none_left(error))

    def close(self) -> None:
        """End all requests and the event loop. Raises the error that ended generation if it was not raised before."""
        try:
            self.loop.close(self._close_connections)
        finally:
            self._servers, self._requests = [], None

    def _open(self) -> None:
        if self._requests is None:
            self.loop.open()
            self._requests = Requests(self.options, self._eos_ids)
            self._servers = [
                InferenceServer(url, self.options, eos_ids=self._eos_ids, max_length=self._max_length)
                for url in self.options.urls
            ]

    async def _load(self, version: int, folder: Path, label: str) -> None:
        reached = await asyncio.gather(*(server.connection.is_reachable() for server in self._servers))
        chosen = [server for server, found in zip(self._servers, reached, strict=True) if found or server.live]
        returned = {server for server in chosen if not server.live} if self.live else set()
        failed = await self._each(chosen or self._servers, lambda server: server.load(folder, label), spares=returned)
        for server in returned & failed.keys():
            _LOG.warning("the %s can be reached again, but not be used: %s", server, line_of(failed[server]))
        for server in self._servers:
            if server in chosen and server not in failed:
                server.live = True
            elif server.live:
                self.drop(server, failed[server])
        if not self.live:
            raise _none_left(next(iter(failed.values())))
        self.requests.version = version

    async def _forget(self) -> None:
        for server in self._servers:
            server.drop()
        self.requests.version = -1
        if failed := await self._each(self._servers, lambda server: server.resume(), spares=self._servers):
            _LOG.warning("servers may still be paused: %s", next(iter(failed.values())))

    async def _each(
        self,
        servers: Sequence[InferenceServer],
        work: Callable[[InferenceServer], Awaitable[object]],
        *,
        spares: Collection[InferenceServer] = (),
    ) -> dict[InferenceServer, BaseException]:
        """Ask servers at once; return the errors of those that cannot be reached, and of `spares`. Raise any other."""
        results = await asyncio.gather(*(work(server) for server in servers), return_exceptions=True)
        failed = {one: found for one, found in zip(servers, results, strict=True) if isinstance(found, BaseException)}
        for server, error in failed.items():
            if not isinstance(error, RolloutError if server in spares else ServerGoneError):
                raise error
        return failed

    async def _on_live(self, work: Callable[[InferenceServer], Awaitable[_T]]) -> list[_T]:
        """Return the results of all live servers; drop those that cannot be reached."""
        found: dict[InferenceServer, _T] = {}

        async def keep(server: InferenceServer) -> None:
            found[server] = await work(server)

        for server, error in (await self._each(self.live, keep)).items():
            self.drop(server, error)
        if self.loop.error is not None or not found:
            raise self.loop.error or RolloutError("no weights were published to this engine yet")
        return list(found.values())

    async def _answer(self, requests: Sequence[Request], turns: Turns | None) -> None:
        """Complete requests; those of a server that is dropped continue on another one."""
        slots = asyncio.Semaphore(self.options.slots * max(1, len(self.live)))

        async def complete(number: int, request: Request) -> None:
            async with slots:
                while not request.complete:
                    if not (live := self.live):
                        raise self.loop.error or RolloutError("no weights were published to this engine yet")
                    server = live[number % len(live)]
                    try:
                        await self.requests.answer(request, server, turns, held=False)
                    except ServerGoneError as error:
                        self.drop(server, error)

        await asyncio.gather(*(complete(*numbered) for numbered in enumerate(requests)))

    async def _close_connections(self) -> None:
        for server in self._servers:
            await server.connection.close()


def _none_left(error: BaseException) -> RolloutError:
    failure = RolloutError(
        f"no server is left: {error}. Start the servers, see their logs for why they ended, and resume the run with "
        "run.resume=auto"
    )
    failure.__cause__ = error
    return failure
