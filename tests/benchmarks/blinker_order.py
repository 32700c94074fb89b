"""Measure how often plain blinker and the bus call three receivers in the order of connection.

    python tests/benchmarks/blinker_order.py [PROCESSES]

Each try is a new process: blinker keeps receivers in a set of their ids, so the order is that of addresses.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

SCRIPT = """
import sys
import attrs, blinker
from hooktrainer import Bus, Plugin, on
from hooktrainer.events import StepEnd
from hooktrainer.bus.handlers import PlacedPlugin
called = []
@attrs.define
class Named(Plugin):
    name: str
    @on(StepEnd)
    def handle(self, event: StepEnd) -> None:
        called.append(self.name)
plugins = [Named(name) for name in ("collect", "reduce", "report")]
event = StepEnd(step=1, version=0, iterations=1)
if sys.argv[1] == "blinker":
    signal = blinker.Signal()
    for plugin in plugins:
        signal.connect(plugin.handle)
    signal.send(event)
else:
    Bus.compose([PlacedPlugin(plugin, plugin.name) for plugin in plugins]).emit(event)
print(" ".join(called))
"""


def orders(way: str, processes: int) -> Counter[str]:
    """Return the orders seen in new processes."""
    run = [sys.executable, "-c", SCRIPT, way]
    return Counter(
        subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() for _ in range(processes)
    )


def main() -> None:
    """Print the orders of blinker and of the bus."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for way in ("blinker", "hooktrainer"):
        seen = orders(way, processes)
        wrong = processes - seen["collect reduce report"]
        print(f"{way}: {wrong} of {processes} processes in another order than the one connected")
        for order, count in seen.most_common():
            print(f"  {count:>4}  {order}")


if __name__ == "__main__":
    main()
