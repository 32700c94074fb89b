"""The event loop of all requests to servers, and the error that ended generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from hooktrainer._util.threads import failure_of
from hooktrainer.errors import HookTrainerError, RolloutError
from hooktrainer.rollout.engine import GRACE_S
from hooktrainer.rollout.event_loop import EventLoop

_T = TypeVar("_T")


class RequestLoop:
    """Runs work in a thread of its own, from `open` to `close`."""

    def __init__(self) -> None:
        self._loop: EventLoop | None = None
        self._tasks: set[Future[Any]] = set()
        self.on_failure: Callable[[], object] = lambda: None
        """Called once generation has ended with an error, on any thread."""
        self.error: HookTrainerError | None = None
        """The error that ended generation."""
        self._raised = False

    def open(self) -> None:
        """Start the thread, unless it runs."""
        if self._loop is None:
            self._loop = EventLoop(self.fail, "rollout-servers")

    def run(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of work in the event loop; an interrupt cancels it."""
        if self._loop is None:
            raise RolloutError("no weights were published to this engine yet")
        future = self._loop.start(work(), None)
        try:
            result: _T = future.result()
        except BaseException:
            future.cancel()
            raise
        return result

    def begin(self, task: Coroutine[Any, Any, None]) -> None:
        """Run a task in the event loop, unless it is closed. An error of the task ends generation."""
        if (loop := self._loop) is None:
            task.close()
            return
        future = loop.start(task, None)
        self._tasks.add(future)
        future.add_done_callback(self._end_task)

    def fail(self, error: BaseException) -> None:
        """End generation with an error, which `raise_if_failed` raises."""
        self.error = self.error or failure_of(error, RolloutError)
        self.on_failure()

    def raise_if_failed(self) -> None:
        """Raise the error that ended generation, if there is one."""
        if self.error is not None:
            self._raised = True
            raise self.error

    def close(self, end: Callable[[], Awaitable[None]]) -> None:
        """Cancel all tasks, await `end()`, and end the thread. Raises the error that ended generation once."""
        loop, self._loop = self._loop, None
        if loop is not None:
            for task in list(self._tasks):
                task.cancel()
            with suppress(Exception):  # a connection that does not close ends with the loop
                loop.start(end(), GRACE_S).result()
            loop.close()
            loop.thread.join(GRACE_S)
        if not self._raised:
            self.raise_if_failed()

    def _end_task(self, task: Future[Any]) -> None:
        self._tasks.discard(task)
        if self._loop is not None and not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
