"""Handlers that the bus can call, and the time that each of them takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from hooktrainer.bus.control import ROW
from hooktrainer.bus.handlers import Handler
from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.metrics import Metric, Sum

Callback: TypeAlias = Callable[..., Any]


class TimedHandler:
    """A handler of the plan, bound to its plugin's method, with its running totals in seconds."""

    __slots__ = ("call", "calls", "every", "longest", "planned", "seconds")

    def __init__(self, handler: Handler) -> None:
        self.planned = handler
        self.call: Callback = getattr(handler.owner.plugin, handler.method)
        self.every = handler.every
        self.calls = 0
        self.seconds = 0.0
        self.longest = 0.0

    def due(self, event: Any) -> bool:
        """Return whether `every` lets the handler run on this event."""
        return self.every is None or event.step % self.every == 0 or getattr(event, "last", False)


class HandlerTimes:
    """The time of all handlers, counted per record and over the run."""

    def __init__(self, handlers: Iterable[TimedHandler]) -> None:
        self.handlers = tuple(handlers)
        """Every handler with its calls, seconds and longest call."""
        self._in_rows = _in_rows(self.handlers)
        self._at_start: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    def start_record(self) -> None:
        """Start counting for a new record."""
        self._at_start = self._seconds()

    def end_record(self) -> Mapping[str, Metric]:
        """Return `timing_s/hook/<plugin>` since the record was started; later time is returned by `late()`.

        Plugins whose handlers all run after the seal are left out.
        """
        seconds = {name: seconds for name, seconds in self._seconds().items() if name in self._in_rows}
        spent = {name: total - self._at_start.get(name, 0.0) for name, total in seconds.items()}
        for name, each in spent.items():
            self._reported[name] = self._reported.get(name, 0.0) + each
        return {f"timing_s/hook/{name}": Sum(each) for name, each in spent.items()}

    def late(self) -> Mapping[str, float]:
        """Return `timing_s/hook/<plugin>` for the time that no row contains."""
        return {
            f"timing_s/hook/{name}": max(0.0, seconds - self._reported.get(name, 0.0))
            for name, seconds in self._seconds().items()
        }

    def summary(self) -> Mapping[str, float]:
        """Return the time that no row contains, and the calls, total and longest time of every handler."""
        summary = dict(self.late())
        for handler in self.handlers:
            key = f"hook/{handler.planned.event.signal}/{handler.planned.label}"
            summary |= {
                f"{key}/calls": handler.calls,
                f"{key}/total_s": handler.seconds,
                f"{key}/max_s": handler.longest,
            }
        return summary

    def _seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for handler in self.handlers:
            name = handler.planned.owner.name
            seconds[name] = seconds.get(name, 0.0) + handler.seconds
        return seconds


def _in_rows(handlers: Iterable[TimedHandler]) -> frozenset[str]:
    """Return the names of the plugins with a handler that runs between the start of a step and the seal of its row."""
    planned = [handler.planned for handler in handlers]
    seals = [each.number for each in planned if each.event is StepEnd and ROW in each.makes]
    last = min(seals, default=math.inf)
    return frozenset(
        each.owner.name
        for each in planned
        if each.event not in (FitStart, FitEnd) and (each.event is not StepEnd or each.number <= last)
    )
