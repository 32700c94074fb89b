"""The ledger: every dispatch is an entry that ends exactly once, and the ages of all entries balance.

An entry ends as sampled or as dropped; until then it is outstanding. Its age is the version at its end (outstanding:
the current version) minus the version at its dispatch, which its stamp gives. The sum of all ages is also the sum, over
all moves of the version, of the entries that were open at that move. Both sums are computed, from different sources.
They are equal as long as no stamp, drop, replacement or move is lost or counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from hooktrainer.errors import LedgerError
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import Group

DropReason: TypeAlias = Literal["stale", "capacity", "failed", "cancelled", "restart", "no_signal"]
PREFIX: Final = "ledger"


@attrs.define
class Tally:
    """An amount in groups, trajectories and tokens."""

    groups: int = 0
    trajectories: int = 0
    tokens: int = 0

    def add(self, group: Group) -> None:
        """Count a group, its trajectories and their tokens. An unfinished group has no trajectory."""
        tokens = group.num_tokens  # raises before anything is counted
        self.groups += 1
        self.trajectories += len(group.trajectories)
        self.tokens += tokens

    @property
    def mean_length(self) -> float | None:
        """Tokens per trajectory, None before there is any."""
        return self.tokens / self.trajectories if self.trajectories else None


class Ledger:
    """Entries of all dispatches of a run. Not thread-safe: the buffer calls it under its lock."""

    def __init__(self) -> None:
        self.dispatched = 0
        """Number of dispatched groups."""
        self.finished = Tally()
        """Groups that were generated, dropped ones included."""
        self.sampled = Tally()
        self.dropped: dict[DropReason, Tally] = {}
        self._version = 0
        self._ages_of_ended = 0  # from stamps
        self._open: dict[int, int] = {}  # version at dispatch, by group number
        self._open_versions = 0  # sum of these versions
        self._aged_by_moves = 0  # from moves

    @property
    def outstanding(self) -> int:
        """Number of groups that were dispatched and have not ended."""
        return len(self._open)

    @property
    def imbalance(self) -> int:
        """Sum of ages from stamps minus the sum from version moves; 0 if the ledger is right."""
        ages = self._ages_of_ended + self.outstanding * self._version - self._open_versions
        return ages - self._aged_by_moves

    @property
    def length_bias(self) -> float | None:
        """Mean length of trained responses over that of all generated ones; None before there are any."""
        trained, generated = self.sampled.mean_length, self.finished.mean_length
        return trained / generated if trained is not None and generated else None

    def open(self, group: Group) -> None:
        """Add an entry for a dispatched group."""
        self.dispatched += 1
        self._open[group.number] = group.stamp - 1
        self._open_versions += group.stamp - 1

    def finish(self, group: Group) -> None:
        """Count a group that was generated; its entry remains open."""
        self.finished.add(group)

    def sample(self, group: Group) -> None:
        """End an entry as sampled."""
        self._end(group)
        self.sampled.add(group)

    def drop(self, group: Group, reason: DropReason) -> None:
        """End an entry as dropped."""
        self._end(group)
        self.dropped.setdefault(reason, Tally()).add(group)

    def move(self, version: int) -> None:
        """Set the published version."""
        self._aged_by_moves += self.outstanding * (version - self._version)
        self._version = version

    def metrics(self) -> Mapping[str, Metric]:
        """Return the totals of the run so far, by fate and unit."""
        fates = {"trained": self.sampled, "generated": self.finished}
        fates |= {f"dropped/{reason}": tally for reason, tally in self.dropped.items()}
        totals: dict[str, Metric] = {
            f"{PREFIX}/{unit}/{fate}": Last(amount)
            for fate, tally in fates.items()
            for unit, amount in attrs.asdict(tally).items()
        }
        totals[f"{PREFIX}/groups/dispatched"] = Last(self.dispatched)
        totals[f"{PREFIX}/groups/outstanding"] = Last(self.outstanding)
        totals[f"{PREFIX}/imbalance"] = Last(self.imbalance)
        if self.length_bias is not None:
            totals["training/off_policy/length_bias"] = Last(self.length_bias)
        return totals

    def state_dict(self) -> Mapping[str, object]:
        """Return all entries and totals."""
        return {
            "dispatched": self.dispatched,
            "finished": attrs.asdict(self.finished),
            "sampled": attrs.asdict(self.sampled),
            "dropped": {reason: attrs.asdict(tally) for reason, tally in self.dropped.items()},
            "version": self._version,
            "ages_of_ended": self._ages_of_ended,
            "aged_by_moves": self._aged_by_moves,
            "open": dict(self._open),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.dispatched = state["dispatched"]
        self.finished, self.sampled = Tally(**state["finished"]), Tally(**state["sampled"])
        self.dropped = {reason: Tally(**tally) for reason, tally in state["dropped"].items()}
        self._version = state["version"]
        self._ages_of_ended, self._aged_by_moves = state["ages_of_ended"], state["aged_by_moves"]
        self._open = dict(state["open"])
        self._open_versions = sum(self._open.values())

    def _end(self, group: Group) -> None:
        if group.number not in self._open:
            raise LedgerError(f"group {group.number} ended twice, or was never dispatched")
        self._ages_of_ended += self._version - (group.stamp - 1)
        self._open_versions -= self._open.pop(group.number)
