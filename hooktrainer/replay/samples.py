"""The groups that were trained and the answers that were validated last, for plugins that show them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hooktrainer.ports import Group, Prompt, Trajectory


@attrs.define(eq=False)
class KeptSamples:
    """Implementation of `hooktrainer.ports.LatestSamples`."""

    kept: bool = False
    trained: Sequence[Group] = ()
    """The groups of the last update."""
    validated: Sequence[tuple[Prompt, Trajectory]] = ()
    """Prompts and answers that were validated since the last update."""

    def keep(self) -> None:
        """Keep the samples that are added after this call."""
        self.kept = True

    def add_trained(self, groups: Sequence[Group]) -> None:
        """Replace the groups, and forget the validated answers."""
        if self.kept:
            self.trained, self.validated = tuple(groups), ()

    def add_validated(self, prompts: Sequence[Prompt], answers: Sequence[Trajectory]) -> None:
        """Add one answer to each prompt."""
        if self.kept:
            self.validated = (*self.validated, *zip(prompts, answers, strict=True))
