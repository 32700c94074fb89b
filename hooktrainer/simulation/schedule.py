"""The schedule of a simulated run: how long each thing takes, which is all that its interleaving depends on."""

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
    """Seconds by kind and number: the dispatch number of a group, an update from 0, the version of a sync.

    A time depends on the seed and its number alone, so that settings are compared on the same groups. What was drawn
    can be saved, and replayed by a run with the same configuration.
    """

    generate: Distribution | None = attrs.field(factory=partial(Constant, 0))
    train: Distribution | None = attrs.field(factory=partial(Constant, 0))
    sync: Distribution | None = attrs.field(factory=partial(Constant, 0))
    seed: int = 0
    times: dict[tuple[Kind, int], float] = attrs.field(factory=dict, repr=False)
    """What was drawn."""

    def seconds(self, kind: Kind, number: int) -> float:
        """Drawn when first asked for. Raises `ConfigError` if a replayed schedule does not say."""
        key = (kind, number)
        if key not in self.times:
            distribution: Distribution | None = getattr(self, kind)
            if distribution is None:
                raise ConfigError(f"the schedule has no time for {kind} {number}: the run that it was saved by differs")
            self.times[key] = distribution.draw(np.random.default_rng((self.seed, KINDS.index(kind), number)))
        return self.times[key]

    def save(self, path: Path) -> None:
        """One JSON object a line, in the order in which they were drawn."""
        items = ({"kind": kind, "number": number, "seconds": time} for (kind, number), time in self.times.items())
        path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """A schedule that holds what was saved, and nothing else."""
        items = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        times: dict[tuple[Kind, int], float] = {(item["kind"], item["number"]): item["seconds"] for item in items}
        return cls(generate=None, train=None, sync=None, times=times)
