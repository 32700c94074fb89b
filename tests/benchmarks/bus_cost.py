"""Measure the cost of an event for ten handlers: called directly, through the bus with timing, and by plain blinker.

python tests/benchmarks/bus_cost.py
"""

from __future__ import annotations

import platform
import statistics
import timeit

import attrs
import blinker

from hooktrainer import Bus, Plugin, on
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.events import StepEnd

HANDLERS, SENDS, ROUNDS = 10, 5_000, 15


@attrs.define
class Idle(Plugin):
    """A plugin that does nothing."""

    @on(StepEnd)
    def handle(self, event: StepEnd) -> None:
        """Do nothing."""


def main() -> None:
    """Measure the three variants in turn, and print medians and ratios."""
    plugins = [Idle() for _ in range(HANDLERS)]
    bus = Bus.compose([PlacedPlugin(plugin, f"idle_{place}") for place, plugin in enumerate(plugins)])
    stock = blinker.Signal()
    for plugin in plugins:
        stock.connect(plugin.handle)
    event = StepEnd(step=1, version=0, iterations=1)

    def direct() -> None:
        for plugin in plugins:
            plugin.handle(event)

    ways = {"direct": direct, "bus": lambda: bus.emit(event), "blinker": lambda: stock.send(event)}
    rounds = [
        {name: timeit.timeit(way, number=SENDS) / SENDS * 1e6 for name, way in ways.items()} for _ in range(ROUNDS)
    ]
    for name in ways:
        print(f"{name:<8} {statistics.median(one[name] for one in rounds):6.2f} us an event to {HANDLERS} handlers")
    print(f"bus / direct   {statistics.median(one['bus'] / one['direct'] for one in rounds):.2f}   (at most 8)")
    print(f"bus / blinker  {statistics.median(one['bus'] / one['blinker'] for one in rounds):.2f}   (below 0.5)")
    print(f"median of {ROUNDS} interleaved rounds, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
