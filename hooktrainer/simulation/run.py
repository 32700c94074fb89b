"""One simulated run: the real trainer, wired to ports that only take time."""

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
    """Runs once; what it was made of can be looked at afterwards."""

    config: TrainerConfig
    plugins: Sequence[Plugin | PlacedPlugin] = ()
    """The one that sets the staleness strategy, or none; syncing comes by itself."""
    schedule: Schedule = attrs.field(factory=Schedule)
    """How long everything takes."""
    group_seconds: Callable[[Group], float] | None = None
    """How long a group takes, if the schedule is not to say."""
    limits: ReplayOptions | None = None
    groups_at_once: int = 1
    """Groups that the engine generates at the same time."""
    overlaps: bool = True
    """Whether the engine works while the learner does."""
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
        """Train to the end. Raises `RunError` as a real run would, `StarvedError` also where that would hang."""
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
