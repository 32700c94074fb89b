"""A whole run in virtual time: the real loop, buffer, dispatch and staleness plugin over an engine and a learner that
only take time.

It answers in seconds what a setting does to staleness, waste and waiting, and gives tests of concurrency one thread and
a schedule that can be kept and run again.
"""

from __future__ import annotations

from hooktrainer.simulation.distributions import Constant, Distribution, LogNormal, Recorded, parse_distribution
from hooktrainer.simulation.outcome import Outcome
from hooktrainer.simulation.run import Simulation
from hooktrainer.simulation.schedule import Schedule
from hooktrainer.simulation.sweep import Row, sweep
from hooktrainer.simulation.virtual_clock import VirtualClock

__all__ = [
    "Constant",
    "Distribution",
    "LogNormal",
    "Outcome",
    "Recorded",
    "Row",
    "Schedule",
    "Simulation",
    "VirtualClock",
    "parse_distribution",
    "sweep",
]
