"""A run whose whole state is one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.ports import Snapshot


@attrs.define(kw_only=True)
class FakeRunState:
    """Captures and restores `state`, whatever a test puts into it."""

    directory: Path | None = None
    resume: Literal["off", "auto"] | Path = "off"
    step: int = 0
    state: dict[str, Any] = attrs.field(factory=dict)
    generators: dict[str, Any] = attrs.field(factory=dict)
    """What stands for the global random generators."""
    latest: Snapshot | None = None
    captured: list[int] = attrs.field(factory=list)
    """The steps that were captured."""
    began_anew: list[int] = attrs.field(factory=list)
    """The steps in which the learner was put back."""

    def capture(self, step: int) -> Snapshot:
        """A copy of the state."""
        self.captured.append(step)
        self.latest = encode(step, {"state": self.state})
        return self.latest

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:  # noqa: ARG002
        """Put the state back."""
        self.state = decode(snapshot, "state")
        self.step, self.latest = snapshot.step, snapshot

    def capture_learner(self, step: int) -> Snapshot:
        """A copy of the state, which does not become the latest."""
        return encode(step, {"state": self.state})

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Put the state back, but stay where the run is."""
        self.state = decode(snapshot, "state")
        self.began_anew.append(step)

    def random(self) -> Mapping[str, object]:
        """A copy of the generators."""
        return dict(self.generators)

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        self.generators = dict(state)
