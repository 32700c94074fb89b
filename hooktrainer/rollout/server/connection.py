"""Connection to one server: requests are repeated until a deadline, and failures state what to do."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Final, TypeVar

import httpx

from hooktrainer.errors import RolloutError, message_of
from hooktrainer.rollout.server.errors import ServerError, ServerFailureError, ServerGoneError, error_of_status
from hooktrainer.rollout.server.options import ServingOptions

_T = TypeVar("_T")
_CONNECT_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0
_PROBE_S: Final = 5.0
_DATA: Final = "data:"
_DONE: Final = "[DONE]"


class Connection:
    """Sends requests to one server. Use it in one event loop."""

    def __init__(self, url: str, options: ServingOptions) -> None:
        self.url: Final = url
        self._options = options
        self._key = os.environ.get(options.api_key_env, "")
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(options.request_timeout_s, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            verify=url.startswith("https:"),  # without it no certificates are read
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def is_reachable(self) -> bool:
        """Return whether the server replies that it is healthy; ask once."""
        try:
            return (await self._http.get("/health", timeout=_PROBE_S)).is_success
        except httpx.TransportError:
            return False

    async def get(self, path: str) -> Any:
        """Return the reply to a GET request."""
        return await self.repeated(lambda: self._reply("GET", path))

    async def post(
        self, path: str, body: object = None, *, params: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Any:
        """Return the reply to a POST request. A limit of the time replaces `request_timeout_s`."""
        return await self.repeated(lambda: self._reply("POST", path, body, params, timeout_s))

    async def repeated(self, attempt: Callable[[], Awaitable[_T]], progress: Callable[[], object] = lambda: None) -> _T:
        """Await `attempt()` until it succeeds, and raise its failure at the deadline.

        The deadline starts again when `progress()` returns another value.
        """
        known = progress()
        began, first = monotonic(), 0
        for count in itertools.count():
            try:
                return await attempt()
            except ServerFailureError as failure:
                if (made := progress()) != known:
                    known, began, first = made, monotonic(), count
                limit = self._options.request_timeout_s if failure.busy else self._options.retry_s
                delay = failure.retry_after_s or min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (count - first))
                delay *= random.uniform(0.5, 1.5)  # noqa: S311 - so that requests that failed together spread
                if monotonic() - began + delay > limit:
                    raise
                await asyncio.sleep(delay)
        raise AssertionError

    async def events(self, path: str, body: object) -> AsyncIterator[Any]:
        """Yield the events of a reply that is streamed. Raises `ServerFailureError` if its end is missing."""
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                    self._check(response, path)
                async for line in response.aiter_lines():
                    if not line.startswith(_DATA):
                        continue
                    if (text := line.removeprefix(_DATA).strip()) == _DONE:
                        return
                    yield self._event(text, path)
        except httpx.TransportError as error:
            raise self._gone(path, error) from error
        raise ServerFailureError(f"the server {self.url} truncated its reply to {path}, also when it was repeated")

    def _event(self, text: str, path: str) -> Any:
        found = self._parsed(text, path)
        if "error" in found:
            status = found["error"].get("code") if isinstance(found["error"], dict) else None
            raise self._error(status if isinstance(status, int) and status >= 400 else 500, text, path)
        return found

    async def _reply(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        timeout = self._http.timeout if timeout_s is None else httpx.Timeout(timeout_s, connect=_CONNECT_S)
        try:
            response = await self._http.request(method, path, json=body, params=params, timeout=timeout)
        except httpx.TransportError as error:
            raise self._gone(path, error) from error
        self._check(response, path)
        return self._parsed(response.text, path) if response.text.strip() else None

    def _gone(self, path: str, error: httpx.TransportError) -> ServerGoneError:
        text = message_of(error) or type(error).__name__
        return ServerGoneError(f"the server {self.url} cannot be reached ({path}): {text}")

    def _check(self, response: httpx.Response, path: str) -> None:
        if response.is_success:
            return
        error = self._error(response.status_code, response.text, path)
        if isinstance(error, ServerFailureError):
            error.retry_after_s = _seconds(response.headers.get("Retry-After"))
        raise error

    def _error(self, status: int, text: str, path: str) -> RolloutError:
        shown = text.replace(self._key, "***") if self._key else text
        variable = self._options.api_key_env
        return error_of_status(self.url, path, status, shown, key_variable=variable, has_key=bool(self._key))

    def _parsed(self, text: str, path: str) -> Any:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerError(
                f"{self.url} replied to {path} with something other than a JSON object. rollout.urls must name servers "
                "of vLLM"
            )
        return found


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None
