"""An inference server that speaks the protocol of vLLM, with a small decoder; faults can be switched on."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from torch import Tensor

from helpers.rollouts import LENGTH, build, generator_config
from hooktrainer import Plugin, on
from hooktrainer.events import IterationEnd
from hooktrainer.models.decoder_folder import load_weights
from hooktrainer.models.options import DecoderOptions
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.server.engine import ServerOptions
from hooktrainer.rollout.server.server_engine import ServerEngine

MODEL = "policy"
SAVE = DecoderOptions(layers=2, width=16, heads=2).save
SHORT = {"n": 2, "max_response_length": LENGTH, "retry_s": 0.3}


class ModelServer:
    """Serves a decoder from a thread. Attributes may be set at any time."""

    def __init__(
        self, *, dev_mode: bool = True, key: str = "", port: int = 0, load: Callable[[Path], Any] | None = None
    ) -> None:
        """`load` returns the model of a folder; without it, folders have a decoder like that of `build`."""
        self.model: Any = build(seed=99)
        self._load = load
        self.names = [MODEL]
        self.max_model_len: int | None = 10_000
        self.key = key
        self.failures: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
        """Statuses with headers of the next replies, by path."""
        self.raw_logprobs = self.no_logprobs = self.no_token_ids = self.keeps_cache = self.keeps_head = False
        self.ignores_version = self.busy_cache = False
        self.stop_token: int | None = None
        """A stop token of the server's own."""
        self.truncate_after: list[int] = []
        """Tokens after which the next replies end without a finish reason."""
        self.loaded: list[str] = []
        self.calls: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.frozen = threading.Event()
        """Set once the tokens that `freeze_after` allowed are sampled."""
        self._tokens_left = math.inf
        self._version = "default"
        self._cache: dict[tuple[int, ...], Tensor] = {}
        self._num_running = 0
        self._dev_mode = dev_mode
        # With the protocol named, asyncio turns Nagle's algorithm off, which delays small replies.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            self._app(), log_level="critical", lifespan="off", ws="none", loop="asyncio", http="h11",
            timeout_graceful_shutdown=0,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name=f"test-server-{self.port}", daemon=True)
        self._thread.start()

    def freeze_after(self, tokens: float) -> None:
        """Sample this many tokens, and then none until the next call."""
        self.frozen.clear()

        def limit() -> None:
            self._tokens_left = tokens
            self._thaw.set()

        self._call(limit)

    def vanish(self) -> None:
        """End as a killed process does: all connections break."""

        def end() -> None:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server.should_exit = self._server.force_exit = True

        if self._thread.is_alive():
            self._call(end)
            self._thread.join(20)
        self._socket.close()

    def _call(self, action: Any) -> None:
        while self._loop is None:
            self._started.wait(20)
        self._loop.call_soon_threadsafe(action)

    _started: threading.Event

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._resumed, self._thaw, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._resumed.set()
            self._idle.set()
            self._started.set()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def _app(self) -> Starlette:
        self._started = threading.Event()
        control = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/collective_rpc": self._reload,
            "/update_weight_version": self._set_version,
            "/weight_info": self._weight_info,
            "/reset_prefix_cache": self._reset,
        }
        paths = {
            "/health": self._health,
            "/v1/models": self._models,
            "/v1/completions": self._complete,
            **(control if self._dev_mode else {}),
        }
        return Starlette(
            routes=[Route(path, self._guarded(handle), methods=["GET", "POST"]) for path, handle in paths.items()]
        )

    def _guarded(self, handle: Any) -> Any:
        async def guarded(request: Request) -> Response:
            path = request.url.path
            self.calls.append(path)
            if self.key and request.headers.get("Authorization") != f"Bearer {self.key}" and path != "/health":
                return JSONResponse({"error": "Unauthorized"}, 401)
            if failures := self.failures.get(path):
                status, headers = failures.pop(0)
                return JSONResponse({"error": {"message": f"made to fail with {status}"}}, status, headers)
            try:
                reply: Response = await handle(request)
            except Exception as error:  # noqa: BLE001 - as a server does, whose test sees the text
                return JSONResponse({"error": {"message": repr(error)}}, 500)
            return reply

        return guarded

    async def _health(self, _request: Request) -> Response:
        return Response()

    async def _models(self, _request: Request) -> Response:
        cards = [{"id": name, "max_model_len": self.max_model_len} for name in self.names]
        return JSONResponse({"object": "list", "data": cards})

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        assert mode in {"keep", "wait"}, mode
        self.calls[-1] += f"?{mode}"
        self._resumed.clear()
        if mode == "wait":
            await self._idle.wait()
        return JSONResponse({"status": "paused"})

    async def _resume(self, _request: Request) -> Response:
        self._resumed.set()
        return JSONResponse({"status": "resumed"})

    async def _reload(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        folder = body["kwargs"]["weights_path"]
        with torch.no_grad():
            if self._load is not None:
                self.model = self._load(Path(folder))
            else:
                head = self.model.head.weight.clone()
                load_weights(self.model, Path(folder))
                if self.keeps_head:
                    self.model.head.weight.copy_(head)
        self.loaded.append(folder)
        return JSONResponse({"results": [None]})

    async def _set_version(self, request: Request) -> Response:
        if not self.ignores_version:
            self._version = (await request.json())["new_version"]
        return JSONResponse({"success": True})

    async def _weight_info(self, _request: Request) -> Response:
        return JSONResponse({"weight_version": self._version})

    async def _reset(self, _request: Request) -> Response:
        if not self.keeps_cache:
            self._cache.clear()
        busy, self.busy_cache = self.busy_cache, False
        return JSONResponse({"success": not busy})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if body["model"] not in self.names:
            return JSONResponse({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        choices = self._choices(body)
        if body.get("stream"):
            return StreamingResponse(self._events(choices), media_type="text/event-stream")
        return JSONResponse({"choices": [self._merged([choice async for choice in choices])]})

    async def _events(self, choices: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        async for choice in choices:
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
            if choice.get("finish_reason"):
                yield "data: [DONE]\n\n"

    def _merged(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        merged: dict[str, Any] = {"text": "?", "finish_reason": choices[-1].get("finish_reason")}
        if not self.no_token_ids:
            merged["token_ids"] = [token for choice in choices for token in choice["token_ids"]]
        if not self.no_logprobs:
            for key in ("token_logprobs", "top_logprobs"):
                values = [value for choice in choices for value in choice["logprobs"][key]]
                merged.setdefault("logprobs", {})[key] = values
        return merged

    async def _choices(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        await self._resumed.wait()
        self._num_running += 1
        self._idle.clear()
        try:
            async for choice in self._sampled(body):
                yield choice
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    async def _sampled(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        tokens = list(body["prompt"])
        end = self.truncate_after.pop(0) if body.get("stream") and self.truncate_after else math.inf
        for count in range(body["max_tokens"]):
            if count >= end:
                return
            await self._turn()
            choice, token = self._step(body, tokens)
            tokens.append(token)
            if token in body.get("stop_token_ids", ()) or token == self.stop_token:
                yield choice | {"finish_reason": "stop"}
                return
            yield choice | ({"finish_reason": "length"} if count + 1 == body["max_tokens"] else {})
            await asyncio.sleep(0)

    async def _turn(self) -> None:
        """Wait while paused or frozen."""
        await self._resumed.wait()
        while self._tokens_left <= 0:
            self._thaw.clear()
            self.frozen.set()
            await self._thaw.wait()
        self._tokens_left -= 1

    def _step(self, body: Mapping[str, Any], tokens: list[int]) -> tuple[dict[str, Any], int]:
        logits = self._logits(tokens)
        biased = logits.clone()
        for token, bias in body.get("logit_bias", {}).items():
            biased[int(token)] += bias
        processed = torch.log_softmax(biased / (body["temperature"] or 1.0), -1)
        generator = torch.Generator().manual_seed(body.get("seed") or 0)
        greedy = body["temperature"] == 0
        token = int(processed.argmax() if greedy else torch.multinomial(processed.exp(), 1, generator=generator))
        shown = torch.log_softmax(logits, -1) if self.raw_logprobs else processed
        asked = {f"token_id:{each}": float(shown[each]) for each in body.get("logprob_token_ids", ())}
        choice: dict[str, Any] = {"text": "?", "token_ids": [token]}
        choice["logprobs"] = {"token_logprobs": [float(shown[token])], "top_logprobs": [asked]}
        if body.get("stream") and self.no_logprobs:
            choice["logprobs"] = None
        if body.get("stream") and self.no_token_ids:
            del choice["token_ids"]
        return choice, token

    @torch.no_grad()
    def _logits(self, tokens: list[int]) -> Tensor:
        key = tuple(tokens)
        if key not in self._cache:
            text = torch.tensor([tokens])
            cache = self.model.new_cache(1, len(tokens) + 1)
            self._cache[key] = self.model.prefill(text, [len(tokens)], cache)[0]
        return self._cache[key]


@contextmanager
def serving(count: int = 1, **options: Any) -> Iterator[list[ModelServer]]:
    """Run servers until the block ends."""
    servers = [ModelServer(**options) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.vanish()


class OwnServers:
    """Options of a server engine that runs its servers itself, and ends them when it is closed."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        self._count = count
        self._options = options

    def build(self, config: GeneratorConfig) -> ServerEngine:
        """Start the servers, and build the engine."""
        servers = [ModelServer() for _ in range(self._count)]
        folder = tempfile.TemporaryDirectory()
        engine = served(servers, Path(folder.name), config, **self._options)
        close = engine.close

        def close_all() -> None:
            try:
                close()
            finally:
                for server in servers:
                    server.vanish()
                folder.cleanup()

        engine.close = close_all  # type: ignore[method-assign]
        return engine


def served(
    servers: Sequence[ModelServer],
    folder: Path,
    config: GeneratorConfig | None = None,
    save: Callable[..., None] = SAVE,
    **options: Any,
) -> ServerEngine:
    """Return an engine that samples on these servers."""
    made = ServerOptions(urls=[server.url for server in servers], weights_dir=folder, **{**SHORT, **options})
    engine = made.build(attrs.evolve(config or generator_config(), save=save))
    assert isinstance(engine, ServerEngine)
    return engine


@attrs.define(kw_only=True)
class EndsServers(Plugin):
    """Ends servers after the first iteration."""

    servers: ClassVar[list[ModelServer]] = []

    @on(IterationEnd)
    def end(self, _event: IterationEnd) -> None:
        while EndsServers.servers:
            EndsServers.servers.pop().vanish()
