"""An event loop in a thread of its own, in which asynchronous rewards or the requests to servers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final

from hooktrainer._util.forks import Original
from hooktrainer._util.threads import ReportingThread
from hooktrainer.errors import RunError, message_of

CANCEL_S: Final = 1.0
"""Seconds that a coroutine has to end after it was cancelled."""


class AwaitTimeoutError(RunError):
    """A coroutine exceeded its timeout. The message is that of the error with which it ended, or empty."""


class LoopBlockedError(RunError):
    """A coroutine blocks the event loop."""


class EventLoop:
    """A loop that runs until it is closed. A loop that a coroutine blocks can only be abandoned."""

    def __init__(self, on_failure: Callable[[BaseException], None], name: str = "reward-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self.thread: Final = ReportingThread(self._run, name, on_failure)
        self.thread.start()

    def start(self, awaitable: Awaitable[Any], timeout_s: float | None) -> Future[Any]:
        """Await a value in the loop, and cancel it after the timeout."""
        return asyncio.run_coroutine_threadsafe(_limited(awaitable, timeout_s), self._loop)

    def result(self, future: Future[Any], timeout_s: float | None) -> Any:
        """Wait for a value that `start` returned. Call it on another thread."""
        if wait([future], None if timeout_s is None else timeout_s + 2 * CANCEL_S).not_done:
            raise LoopBlockedError
        return future.result()

    def close(self) -> None:
        """Cancel everything in the loop, and let its thread end."""
        self._closed = True
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._stop()))

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CANCEL_S)
        await asyncio.sleep(0)  # tasks that have just ended pass their results on
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closed:
            with suppress(SystemExit, KeyboardInterrupt):  # raised by a coroutine, and passed on to its caller
                self._loop.run_forever()
        self._loop.close()


async def _limited(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    task = asyncio.ensure_future(_result(awaitable))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_S)
    error = task.exception() if task.done() and not task.cancelled() else None
    raise AwaitTimeoutError("" if error is None else message_of(error))


async def _result(awaitable: Awaitable[Any]) -> Any:
    with Original().without_copies():
        return await awaitable
