"""The schedule of a simulated run: the duration of every operation, which determines the order of all actions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final, Self, get_args

import attrs
import numpy as np

from hooktrainer.errors import ConfigError
from hooktrainer.simulation.distributions import Constant, Distribution, Kind

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@attrs.define(kw_only=True)
class Schedule:
    """Seconds by kind and number: dispatch number of a group, index of an update, version of a sync.

    A duration depends only on the seed, the kind and the number, so that settings are compared on the same groups.
    Sampled durations can be saved, and replayed by a run with the same configuration.
    """

    generate: Distribution | None = attrs.field(factory=partial(Constant, 0))
    train: Distribution | None = attrs.field(factory=partial(Constant, 0))
    sync: Distribution | None = attrs.field(factory=partial(Constant, 0))
    seed: int = 0
    times: dict[tuple[Kind, int], float] = attrs.field(factory=dict, repr=False)
    """Durations sampled so far."""

    def seconds(self, kind: Kind, number: int) -> float:
        """Return a duration, sampled at the first call. Raises `ConfigError` if a loaded schedule lacks it."""
        key = (kind, number)
        if key not in self.times:
            distribution: Distribution | None = getattr(self, kind)
            if distribution is None:
                raise ConfigError(f"the schedule has no time for {kind} {number}: it was saved by a different run")
            self.times[key] = distribution.draw(np.random.default_rng((self.seed, KINDS.index(kind), number)))
        return self.times[key]

    def save(self, path: Path) -> None:
        """Write one JSON object per line, in the order of sampling."""
        items = ({"kind": kind, "number": number, "seconds": time} for (kind, number), time in self.times.items())
        path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a schedule that has only the saved durations."""
        items = map(json.loads, path.read_bytes().splitlines())
        times: dict[tuple[Kind, int], float] = {(item["kind"], item["number"]): item["seconds"] for item in items}
        return cls(generate=None, train=None, sync=None, times=times)
