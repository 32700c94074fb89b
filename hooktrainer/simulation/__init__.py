"""Runs in virtual time: the real loop, buffer and plugins with an engine and a learner that only consume time."""

from __future__ import annotations

from hooktrainer.simulation import table
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
    "table",
]
