"""Ports of samples: the answers that were trained and validated last, and a log of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Group, Prompt, Trajectory


@runtime_checkable
class LatestSamples(Protocol):
    """The groups of the last update and the answers of the last validation. Used on the loop's thread.

    Nothing is copied, and nothing is kept until a plugin asks for it.
    """

    def keep(self) -> None:
        """Keep the samples of the last update and validation after this call, which belongs in `fit_start`."""
        ...

    @property
    def trained(self) -> Sequence[Group]:
        """The groups of the last update, for handlers of `iteration_end`; empty unless samples are kept."""
        ...

    @property
    def validated(self) -> Sequence[tuple[Prompt, Trajectory]]:
        """The prompts and answers that were validated since the last update; empty unless samples are kept."""
        ...

    def add_trained(self, groups: Sequence[Group]) -> None:
        """Offer the groups of an update. The loop calls it after the update."""
        ...

    def add_validated(self, prompts: Sequence[Prompt], answers: Sequence[Trajectory]) -> None:
        """Offer one answer to each prompt. A plugin that validates calls it in `step_end`, before REPORT."""
        ...


@runtime_checkable
class SampleLog(Protocol):
    """The file of samples in the run directory. Used on the loop's thread."""

    def open(self) -> None:
        """Prepare for writing, and keep the lines of earlier processes. Raises `RecordError` if that is impossible."""
        ...

    def write(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines of plain JSON values, with the step. A repeated call with the same step does nothing.

        Raises `RecordError` if they cannot be written.
        """
        ...

    def show(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Print the same lines for people to standard output. It raises no error."""
        ...

    def rewind(self, step: int) -> None:
        """Delete all lines after `step`. Raises `RecordError` if that is impossible."""
        ...
