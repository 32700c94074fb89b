"""A call that a score pool runs on one of its threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeAlias

import attrs

Resolve: TypeAlias = Callable[[Any], Any]
"""Returns a value, or the result of an awaitable, which runs in the event loop of the pool."""


@attrs.define(eq=False)
class PoolCall:
    """A call with its result. The pool changes it under its lock."""

    call: Callable[[Resolve], Any]
    describe: Callable[[], str]
    last: bool = False
    """Whether it also runs after the pool was closed."""
    future: Future[Any] = attrs.field(factory=Future)
    awaiting: Future[Any] | None = None
    """The value that it awaits in the event loop."""
    deadline: float = math.inf

    def cancel(self) -> None:
        """Cancel it after the pool has removed it, so that no thread sets its result."""
        if self.awaiting is not None:
            self.awaiting.cancel()
        if not self.future.cancel():
            self.future.set_exception(CancelledError())
