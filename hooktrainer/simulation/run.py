"""One simulated run: the real trainer with ports that only consume time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from hooktrainer.bus.binding import Ports
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.config import TrainerConfig
from hooktrainer.plugin import Plugin
from hooktrainer.ports import Group, PromptSource
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.simulation.outcome import Outcome
from hooktrainer.simulation.plugins import SimulatedSync, StalenessCounter
from hooktrainer.simulation.ports import (
    NumberedPrompts,
    SimulatedEngine,
    SimulatedLearner,
    SimulatedTransport,
    VirtualBuffer,
)
from hooktrainer.simulation.schedule import Schedule
from hooktrainer.simulation.virtual_clock import VirtualClock
from hooktrainer.trainer import Trainer


@attrs.define(kw_only=True, eq=False)
class Simulation:
    """A simulated run. `run` can be called once; the components can be inspected afterwards."""

    config: TrainerConfig
    plugins: Sequence[Plugin | PlacedPlugin] = ()
    """The plugin that sets the staleness strategy, or none; the plugin that publishes weights is added."""
    schedule: Schedule = attrs.field(factory=Schedule)
    """Durations of all operations."""
    group_seconds: Callable[[Group], float] | None = None
    """Seconds that a group takes; None to use the schedule."""
    limits: ReplayOptions | None = None
    groups_at_once: int = 1
    """Groups that the engine generates at the same time."""
    overlaps: bool = True
    """Whether the engine works while the learner works."""
    prompts: PromptSource = attrs.field(factory=NumberedPrompts)
    clock: VirtualClock = attrs.field(factory=VirtualClock, init=False)
    buffer: VirtualBuffer = attrs.field(init=False)
    engine: SimulatedEngine = attrs.field(init=False)
    learner: SimulatedLearner = attrs.field(init=False)
    transport: SimulatedTransport = attrs.field(init=False)
    staleness: StalenessCounter = attrs.field(factory=StalenessCounter, init=False)

    def __attrs_post_init__(self) -> None:
        seconds = self.group_seconds or (lambda group: self.schedule.seconds("generate", group.number))
        self.buffer = VirtualBuffer(self.limits, self.clock)
        self.engine = SimulatedEngine(self.clock, seconds, groups_at_once=self.groups_at_once, overlaps=self.overlaps)
        self.learner = SimulatedLearner(self.clock, partial(self.schedule.seconds, "train"))
        self.transport = SimulatedTransport(self.clock, partial(self.schedule.seconds, "sync"))
        if self.overlaps:
            self.buffer.on_dispatch = self.engine.serve

    def run(self) -> Outcome:
        """Run to the end. Raises `RunError` like a real run, and `StarvedError` where a real run would hang."""
        ports = Ports(
            learner=self.learner,
            engine=self.engine,
            buffer=self.buffer,
            transport=self.transport,
            prompts=self.prompts,
            clock=self.clock,
        )
        trainer = Trainer([*self.plugins, SimulatedSync(), self.staleness], ports, self.config)
        result = trainer.fit()
        return Outcome.measure(
            steps=result.step,
            seconds=result.seconds,
            staleness=self.staleness.counts,
            ledger=self.buffer.ledger,
            engine=self.engine,
            learner_s=self.learner.busy_s + self.transport.busy_s,
            groups_at_once=self.groups_at_once,
            overlaps=self.overlaps,
        )
