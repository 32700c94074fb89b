"""Environments that hold a resource: each of them is closed once, however its answer ends."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

from hooktrainer.errors import line_of, shortened
from hooktrainer.ports import SupportsClose
from hooktrainer.rollout.conversation import Conversation
from hooktrainer.rollout.pool_call import Resolve
from hooktrainer.rollout.score_pool import ScorePool

_LOG: Final = logging.getLogger("hooktrainer")
_LONGEST: Final = 200
"""Characters of a prompt in a message."""


def log_warning(text: str) -> None:
    """Log a warning."""
    _LOG.warning("%s", text)


class OpenEnvironments:
    """The environments with `close` that are open. Thread-safe.

    They are closed on the threads of their pool, since asynchronous ones belong to its event loop.
    """

    def __init__(self, pool: ScorePool, warn: Callable[[str], None]) -> None:
        self._pool = pool
        self._warn = warn
        self._lock = threading.Lock()
        self._open: set[Conversation] = set()
        self._ended = False

    def open(self) -> None:
        """Accept conversations again after `end_all`."""
        with self._lock:
            self._ended = False

    def add(self, conversation: Conversation) -> None:
        """Add the environment of a new conversation; close it at once after `end_all`."""
        environment = conversation.environment
        if not isinstance(environment, SupportsClose) or not callable(environment.close):
            return
        with self._lock:
            self._open.add(conversation)
            ended = self._ended
        if ended:
            self.end(conversation)

    def end(self, conversation: Conversation) -> None:
        """Close the environment of a conversation after the reply in progress, unless it was closed."""
        with self._lock:
            if conversation not in self._open:
                return
            self._open.remove(conversation)
        reply = conversation.replying
        if reply is None:
            self._close(conversation)
        else:
            reply.cancel()  # if it has not started
            reply.add_done_callback(lambda _: self._close(conversation))

    def end_all(self) -> None:
        """Close all environments, also later ones."""
        with self._lock:
            self._ended = True
            conversations = list(self._open)
        for conversation in conversations:
            self.end(conversation)

    def finish(self, seconds: float) -> None:
        """Wait until all are closed, at most this many seconds. Warn of those that are not."""
        late = Counter(self._pool.finish(seconds))
        if late:
            names = ", ".join(f"{count} x {name}" for name, count in sorted(late.items()))
            self._warn(
                f"{late.total()} environments were not closed within {seconds:g} s after the end of the run, and may "
                f"still hold their resources: {names}"
            )

    def _close(self, conversation: Conversation) -> None:
        environment = conversation.environment
        assert isinstance(environment, SupportsClose)
        name = f"{type(environment).__name__}.close"

        def close(resolve: Resolve) -> None:
            resolve(environment.close())

        future = self._pool.submit(close, lambda: name, last=True)
        future.add_done_callback(partial(self._report, name, conversation.prompt.text))

    def _report(self, name: str, prompt: str, future: Future[Any]) -> None:
        """Warn of an error. `finish` warns of the environments that it cancels."""
        if future.cancelled() or (error := future.exception()) is None:
            return
        if isinstance(error, CancelledError):
            return
        self._warn(f"{name}: after the answer to {shortened(prompt, _LONGEST)!r}: {line_of(error)}")
