"""Handlers made callable, and what each of them costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from hooktrainer.bus.handlers import Slot
from hooktrainer.metrics import Metric, Sum

Receiver: TypeAlias = Callable[..., Any]


class Handler:
    """A slot made callable, with its running totals in seconds."""

    __slots__ = ("call", "calls", "every", "longest", "seconds", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.call: Receiver = getattr(slot.entry.plugin, slot.method)
        self.every = slot.every
        self.calls = 0
        self.seconds = 0.0
        self.longest = 0.0

    def due(self, event: Any) -> bool:
        """Whether `every` lets the handler run on this event."""
        return self.every is None or event.step % self.every == 0 or getattr(event, "last", False)


class HookTimes:
    """The time of all handlers, in laps of one record each."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        self.handlers = tuple(handlers)
        """Every handler with its calls, seconds and longest call."""
        self._lap: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    def begin_lap(self) -> None:
        """Count for a new record from here."""
        self._lap = self._seconds()

    def end_lap(self) -> Mapping[str, Metric]:
        """`timing_s/hook/<plugin>` since the lap began. What runs later is in no row but in `late`."""
        spent = {name: seconds - self._lap.get(name, 0.0) for name, seconds in self._seconds().items()}
        for name, seconds in spent.items():
            self._reported[name] = self._reported.get(name, 0.0) + seconds
        return {f"timing_s/hook/{name}": Sum(seconds) for name, seconds in spent.items()}

    def late(self) -> Mapping[str, float]:
        """`timing_s/hook/<plugin>` that no row holds."""
        return {
            f"timing_s/hook/{name}": max(0.0, seconds - self._reported.get(name, 0.0))
            for name, seconds in self._seconds().items()
        }

    def summary(self) -> Mapping[str, float]:
        """What no row holds, and of every handler over the run its calls, total and longest time."""
        summary = dict(self.late())
        for handler in self.handlers:
            key = f"hook/{handler.slot.event.signal}/{handler.slot.label}"
            summary |= {
                f"{key}/calls": handler.calls,
                f"{key}/total_s": handler.seconds,
                f"{key}/max_s": handler.longest,
            }
        return summary

    def _seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for handler in self.handlers:
            name = handler.slot.entry.name
            seconds[name] = seconds.get(name, 0.0) + handler.seconds
        return seconds
