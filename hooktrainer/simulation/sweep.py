"""Simulate one run for every combination of thresholds and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.config import Config
from hooktrainer.errors import ConfigError, Fault, RunError
from hooktrainer.events import FitStart
from hooktrainer.plugin import option_fields
from hooktrainer.rollout.options import HasSlots, HasWorkers
from hooktrainer.run.composition import Composition, compose
from hooktrainer.simulation.outcome import Outcome
from hooktrainer.simulation.run import Simulation
from hooktrainer.simulation.schedule import Schedule

POLICY: Final = "replay.policy"
THRESHOLD: Final = "max_off_policy_threshold"


@attrs.frozen(kw_only=True)
class Row:
    """One setting and its outcome."""

    threshold: int | None
    """T; None if no plugin has this option."""
    workers: int
    groups_at_once: int
    outcome: Outcome | None = None
    reason: str = ""
    """Why there is no outcome."""


def sweep(
    composition: Composition,
    schedule: Schedule,
    *,
    steps: int,
    thresholds: Sequence[int] = (),
    workers: Sequence[int] = (),
) -> Iterator[Row]:
    """Run every setting with the same times; thresholds and workers default to those of the configuration.

    The row of a setting that is refused or starves has a reason instead of an outcome. Raises `ConfigError` for
    thresholds if no plugin takes one.
    """
    config, rollout = composition.config, composition.rollout
    name, threshold = _threshold(composition.plan)
    if thresholds and name is None:
        fault = Fault("", f"--thresholds needs a plugin that makes '{POLICY}' and has the option {THRESHOLD}.")
        raise ConfigError([composition.plan.disabled.lacking(fault, makes=POLICY, otherwise=" Add staleness.")])
    for chosen in dict.fromkeys(thresholds or (threshold,)):
        for count in dict.fromkeys(workers or (rollout.workers if isinstance(rollout, HasWorkers) else 1,)):
            groups_at_once = count * groups_per_worker(rollout)
            found = Row(threshold=chosen, workers=count, groups_at_once=groups_at_once)
            try:
                yield attrs.evolve(found, outcome=_outcome(config, name, found, schedule, steps))
            except (ConfigError, RunError) as error:
                yield attrs.evolve(found, reason=str(error))


def groups_per_worker(rollout: object) -> int:
    """Return how many groups one worker of the engine generates at once."""
    if isinstance(rollout, HasSlots) and rollout.batching != "group":
        return max(1, rollout.slots // rollout.n)
    return 1


def policy_entries(plan: Plan) -> tuple[PlacedPlugin, ...]:
    """Return the plugins that set the staleness strategy."""
    return tuple(dict.fromkeys(handler.owner for handler in plan.handlers[FitStart] if POLICY in handler.makes))


def _threshold(plan: Plan) -> tuple[str | None, int | None]:
    for entry in policy_entries(plan):
        if any(field.name == THRESHOLD for field in option_fields(type(entry.plugin))):
            return entry.name, getattr(entry.plugin, THRESHOLD)
    return None, None


def _outcome(config: Config, name: str | None, row: Row, schedule: Schedule, steps: int) -> Outcome:
    plugins = tuple(
        attrs.evolve(entry, options={**entry.options, THRESHOLD: row.threshold}) if entry.name == name else entry
        for entry in config.plugins
    )
    composition = compose(attrs.evolve(config, plugins=plugins))
    return Simulation(
        config=attrs.evolve(config.trainer, total_steps=steps),
        plugins=policy_entries(composition.plan),
        schedule=schedule,
        limits=config.replay,
        groups_at_once=row.groups_at_once,
        # An engine without workers generates on the thread of the loop, while the loop waits for groups.
        overlaps=isinstance(composition.rollout, HasWorkers),
    ).run()
