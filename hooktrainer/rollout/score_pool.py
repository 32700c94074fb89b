"""Threads that call rewards while other answers are generated, with a timeout for each call."""

from __future__ import annotations

import inspect
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from time import monotonic
from typing import Any, Final

from hooktrainer._util.places import place_of_user_code
from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import RolloutError
from hooktrainer.rollout.event_loop import AwaitTimeoutError, EventLoop, LoopBlockedError
from hooktrainer.rollout.pool_call import PoolCall, Resolve
from hooktrainer.rollout.score_options import ScoreOptions
from hooktrainer.tasks.rewards.activity import activity_of

MAX_ABANDONED: Final = 16
"""Threads that may hang in rewards before the run ends. Each of them keeps its memory."""


class PoolError(RolloutError):
    """The pool cannot run calls, so that the run cannot continue."""


class TooManyHangsError(PoolError):
    """Too many rewards hang."""


class ScorePool:
    """Runs calls in at most `workers` threads, in the order of submission. Thread-safe.

    A thread whose call exceeds the timeout is abandoned and replaced, and the call fails.
    """

    def __init__(self, options: ScoreOptions, limit: str = "reward.timeout_s") -> None:
        """`limit` is the option that sets the timeout, for messages."""
        self.options: Final = options
        self._limit = limit
        self._timeout_s = math.inf if options.timeout_s is None else options.timeout_s
        self._changed = threading.Condition()
        self._waiting: deque[PoolCall] = deque()
        self._running: dict[threading.Thread, PoolCall] = {}
        self._threads: set[threading.Thread] = set()
        """Threads that run calls, and the one that checks deadlines. A thread that is removed ends."""
        self._checks_deadlines = False
        self._abandoned: set[threading.Thread] = set()
        """Threads that have not returned from a call that timed out, or was cancelled by `close`."""
        self._ending: list[threading.Thread] = []
        """Threads that are in no call and end."""
        self._numbers = itertools.count()
        self._loop: EventLoop | None = None
        self._settling = 0
        """Number of threads that set the results of calls which have ended."""
        self._closed = False
        self._failure: PoolError | None = None
        """Why a thread of the pool itself failed."""

    def open(self) -> None:
        """Accept calls again after `close`, which must have let its last calls end."""
        with self._changed:
            self._closed = False

    def submit(self, call: Callable[[Resolve], Any], describe: Callable[[], str], *, last: bool = False) -> Future[Any]:
        """Run a call in a thread. After `close` it is cancelled, unless it is a `last` call.

        The call gets a function that returns the result of an awaitable. `describe` names it in the error of a
        timeout; it is called on another thread.
        """
        job = PoolCall(call, describe, last)
        with self._changed:
            if not self._closed or (last and self._failure is None):
                self._waiting.append(job)
                self._add_threads()
                self._changed.notify_all()
                return job.future
        if self._failure is not None:
            job.future.set_exception(self._failure)
        job.future.cancel()
        return job.future

    def thread_of(self, future: Future[Any]) -> threading.Thread | None:
        """Return the thread that runs a call, or None if the call waits or is complete."""
        return next((thread for thread, job in list(self._running.items()) if job.future is future), None)

    def close(self, submit_last: Callable[[], None] | None = None) -> None:
        """Cancel all calls but the last ones, and let the threads end.

        `submit_last` may submit more last calls. The threads and the event loop end after these.
        """
        with self._changed:
            self._closed = True
            cancelled = self._drop(keep_last=True)
        for job in cancelled:
            job.cancel()
        if submit_last is not None:
            submit_last()
        self._release()

    def finish(self, seconds: float) -> Sequence[str]:
        """Wait for the last calls of a closed pool. Cancel those that are late, and return their descriptions."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy(), seconds)
            late = self._drop()
        names = [job.describe() for job in late]
        for job in late:
            job.cancel()
        self._release()
        return names

    def join(self, seconds: float) -> Sequence[threading.Thread]:
        """Wait until the threads of a closed pool have ended. Return those that are still in a call."""
        deadline = monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self._threads, seconds)  # the last calls may still set their results
            running = list(self._abandoned)
            ending, self._ending = self._ending, []
        for thread in ending:
            thread.join()
        for thread in running:
            thread.join(max(0.0, deadline - monotonic()))
        return [thread for thread in running if thread.is_alive()]

    def _drop(self, *, keep_last: bool = False) -> list[PoolCall]:
        """Remove calls and abandon the threads that run them; the lock is held."""
        waiting = [job for job in self._waiting if not (keep_last and job.last)]
        running = {thread: job for thread, job in self._running.items() if not (keep_last and job.last)}
        for job in waiting:
            self._waiting.remove(job)
        for thread in running:
            del self._running[thread]
        self._threads -= running.keys()
        self._abandoned |= running.keys()
        if self._waiting:
            self._add_threads()
        return [*waiting, *running.values()]

    def _is_busy(self) -> bool:
        return bool(self._waiting or self._running or self._settling)

    def _settled(self) -> None:
        """Note that a call has ended, with the callbacks of its future, which may have submitted a last call."""
        with self._changed:
            self._settling -= 1
            self._changed.notify_all()
        self._release()

    def _release(self) -> None:
        """Let the threads and the event loop end if the pool is closed and has no call left."""
        with self._changed:
            if not self._closed or self._is_busy():
                return
            loop, self._loop = self._loop, None
            self._note_ending(self._threads)
            self._threads.clear()
            self._checks_deadlines = False
            self._changed.notify_all()
            if loop is not None:
                self._abandoned.add(loop.thread)
        if loop is not None:
            loop.close()

    def _note_ending(self, threads: Iterable[threading.Thread]) -> None:
        """Let `join` wait for these threads; the lock is held."""
        self._ending = [thread for thread in (*self._ending, *threads) if thread.is_alive()]

    def _add_threads(self) -> None:
        """Start the threads that waiting calls need; the lock is held."""
        if not self._checks_deadlines and self._timeout_s < math.inf:
            self._checks_deadlines = True
            self._start(self._check_deadlines, "reward-timeouts")
        calling = len(self._threads) - self._checks_deadlines
        idle = calling - len(self._running)
        for _ in range(min(len(self._waiting) - idle, self.options.workers - calling)):
            self._start(self._work, f"reward-{next(self._numbers)}")

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = ReportingThread(work, name, self._fail_all)
        thread.start()  # it waits for the lock
        self._threads.add(thread)

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._next_job(me)) is not None:
            value, error = None, None
            try:
                value = job.call(partial(self._resolved, job))
            except BaseException as raised:  # noqa: BLE001 - the future raises it
                error = raised
            with self._changed:
                if self._running.pop(me, None) is not job:  # the call timed out or was cancelled
                    self._abandoned.discard(me)
                    self._note_ending([me])
                    return
                self._settling += 1
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)
            del job, value, error  # they hold answers
            self._settled()

    def _next_job(self, me: threading.Thread) -> PoolCall | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or me not in self._threads)
                if me not in self._threads:
                    return None
                job = self._waiting.popleft()
                if job.future.set_running_or_notify_cancel():
                    break
            job.deadline = monotonic() + self._timeout_s
            self._running[me] = job
            self._changed.notify_all()
            return job

    def _resolved(self, job: PoolCall, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        with self._changed:
            if job not in self._running.values():
                if inspect.iscoroutine(value):
                    value.close()
                raise CancelledError
            left = max(0.0, job.deadline - monotonic())
            job.deadline = math.inf  # the loop checks it
            if self._loop is None:
                self._loop = EventLoop(self._fail_all)
            loop, limit = self._loop, left if left < math.inf else None
            job.awaiting = loop.start(value, limit)
        try:
            return loop.result(job.awaiting, limit)
        except AwaitTimeoutError as late:
            raise self._timeout_error(job, str(late)) from TimeoutError()
        except LoopBlockedError:
            with self._changed:
                if self._loop is loop:
                    self._loop = None
                    self._abandoned.add(loop.thread)
                    loop.close()
            found = f"a coroutine blocks the event loop in {place_of_user_code(loop.thread)}"
            raise self._timeout_error(job, found) from TimeoutError()

    def _check_deadlines(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if me not in self._threads:
                    return
                left = min((job.deadline for job in self._running.values()), default=math.inf) - monotonic()
                if left > 0:
                    self._changed.wait(left if left < math.inf else None)
                    continue
                late = [one for one in self._running.items() if one[1].deadline <= monotonic()]
                for thread, _ in late:
                    del self._running[thread]
                    self._threads.discard(thread)
                    self._abandoned.add(thread)
                self._add_threads()
                self._settling += 1
            for thread, job in late:
                job.future.set_exception(self._hang_error(thread, job))
            self._settled()

    def _hang_error(self, thread: threading.Thread, job: PoolCall) -> BaseException:
        try:
            error = self._timeout_error(job, f"it is in {place_of_user_code(thread)}", activity_of(thread))
        except BaseException as raised:  # noqa: BLE001 - a description may be user code
            return raised
        error.__cause__ = TimeoutError()
        return error

    def _timeout_error(self, job: PoolCall, found: str, activity: str = "") -> RolloutError:
        text = f"{activity or job.describe()} did not return within {self._limit} = {self._timeout_s:g} s"
        text = f"{text}; {found}" if found else text
        if (count := sum(thread.is_alive() for thread in list(self._abandoned))) > MAX_ABANDONED:
            return TooManyHangsError(f"{count} threads hang in rewards, more than {MAX_ABANDONED}; the last: {text}")
        return RolloutError(text)

    def _fail_all(self, error: BaseException) -> None:
        """Fail all calls, also later ones, because a thread of the pool itself failed."""
        failure = failure_of(error, PoolError)
        with self._changed:
            self._failure = failure if isinstance(failure, PoolError) else PoolError(str(failure))
            failed = [*self._waiting, *self._running.values()]
            self._waiting.clear()
            self._running.clear()
            self._threads.clear()
            self._closed = True
            self._changed.notify_all()
        for job in failed:
            job.future.set_exception(self._failure)
