"""Threads that report the error that ended them, so that the run can end as well."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hooktrainer.errors import HookTrainerError, RunError, add_note, repr_of


def failure_of(error: BaseException, kind: type[RunError] = RunError) -> HookTrainerError:
    """Return an error that names the current thread: a `HookTrainerError` with a note, or the cause of a `kind`."""
    name = threading.current_thread().name
    if isinstance(error, HookTrainerError):
        add_note(error, f"raised in the thread {name}")
        return error
    failure = kind(f"the thread {name} failed: {repr_of(error)}")
    failure.__cause__ = error
    return failure


class ReportingThread(threading.Thread):
    """A daemon thread that passes the error that ended it to `on_failure`.

    It is a daemon, since a thread that never returns from user code cannot be ended. `SystemExit` is reported too:
    Python ends a thread silently for it.
    """

    def __init__(
        self,
        work: Callable[[], None],
        name: str,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._on_failure = on_failure

    def run(self) -> None:
        """Run the work, and report any error."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised on the main thread
            self._on_failure(error)
