"""Requests in flight on servers, turn by turn, and how a weight sync stops them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import SyncError
from hooktrainer.rollout.server.inference_server import Answered, InferenceServer
from hooktrainer.rollout.server.options import ServingOptions

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.turns import Turns


class Requests:
    """Sends requests while it is open. Use it in one event loop."""

    def __init__(self, options: ServingOptions, eos_ids: frozenset[int]) -> None:
        self.version = -1
        """Version that all servers have."""
        self._options = options
        self._eos_ids = eos_ids
        self._open = asyncio.Event()
        self._in_flight: Final[set[asyncio.Future[None]]] = set()

    async def open(self) -> None:
        """Let requests start."""
        self._open.set()

    async def hold(self) -> None:
        """Let no request start, and return once none is in flight. Raises `SyncError` at `sync_timeout_s`.

        With `on_sync: continue`, requests in flight are cut off. They continue from the tokens that have arrived.
        """
        self._open.clear()
        if self._options.on_sync == "continue":
            for request in self._in_flight:
                request.cancel()
        if not self._in_flight:
            return
        _, late = await asyncio.wait(self._in_flight, timeout=self._options.sync_timeout_s)
        if late:
            raise SyncError(
                f"waited {self._options.sync_timeout_s:g} s (rollout.sync_timeout_s) for {len(late)} answers in "
                "flight on servers. If answers take that long, raise it, or set rollout.on_sync to continue"
            )

    async def answer(
        self, request: Request, server: InferenceServer, turns: Turns | None, *, held: bool = True
    ) -> None:
        """Complete a request on a server, with the replies of its environment; without `held`, also while not open."""
        while not request.complete:
            if held:
                await self._open.wait()
            await self._sent(request, server)
            if request.complete and request.conversation is not None:
                assert turns is not None
                reply = turns.submit(request)
                await asyncio.gather(asyncio.wrap_future(reply), return_exceptions=True)  # `apply` reads the error
                turns.apply(request, reply)

    async def _sent(self, request: Request, server: InferenceServer) -> None:
        """Sample one turn, which a sync may cut off."""
        sampling = server.connection.repeated(lambda: self._sample(request, server), lambda: len(request.tokens))
        task = asyncio.ensure_future(sampling)
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        try:
            await task
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise

    async def _sample(self, request: Request, server: InferenceServer) -> None:
        if request.complete:  # its last token arrived before the reply was truncated
            return
        start, limit = len(request.tokens), self._options.max_response_length
        seed = None if request.draws is None else int(request.draws[start] * 2**53)
        text = [*request.prompt.tokens.tolist(), *request.tokens]
        version = self.version
        try:
            await server.sample(text, limit - start, seed, Answered(request.tokens, request.logprobs))
        finally:
            request.versions += [version] * (len(request.tokens) - start)
            request.ended = len(request.tokens) > start and request.tokens[-1] in self._eos_ids
            request.complete = request.ended or len(request.tokens) >= limit
