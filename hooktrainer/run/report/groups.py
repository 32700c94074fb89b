"""Groups of runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from hooktrainer.run.history import RunHistory

SCORES: Final = ("val/score/mean", "critic/score/mean")
"""Metrics that judge a run; the first one that a run has is used."""
EXACT: Final = ("val/exact_match/mean", "critic/exact_match/mean")
"""Shares of exact answers, in the same order."""
_PLACE: Final = ("seed", "run.")
"""Settings in which runs of one configuration may differ."""
_ABSENT: Final = "(none)"


@attrs.frozen
class Group:
    """Runs of one configuration; their seeds differ."""

    name: str
    runs: Sequence[RunHistory]

    @property
    def seeds(self) -> list[Any]:
        """The seed of each run; None where it is not known."""
        return [run.settings.get("seed") for run in self.runs]


def grouped(runs: Sequence[RunHistory]) -> list[Group]:
    """Return the runs by configuration, in the order of their first runs. A run without a configuration is alone."""
    found: list[list[RunHistory]] = []
    for run in runs:
        same = (group for group in found if run.settings and _compared(group[0]) == _compared(run))
        if (group := next(same, None)) is None:
            found.append([run])
        else:
            group.append(run)
    names = _unique([_name(group) for group in found])
    return [Group(name, group) for name, group in zip(names, found, strict=True)]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the settings that differ between groups, by address, with the value of each group."""
    every = [_compared(group.runs[0]) for group in groups]
    known = dict.fromkeys(address for settings in every for address in settings)
    rows = {address: [shown(settings.get(address, _ABSENT)) for settings in every] for address in known}
    return {address: values for address, values in rows.items() if len(set(values)) > 1}


def shown(value: object) -> str:
    """Return a setting as it is written in YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case _:
            return str(value)


def _compared(run: RunHistory) -> Mapping[str, Any]:
    return {key: value for key, value in run.settings.items() if not key.startswith(_PLACE)}


def _name(runs: Sequence[RunHistory]) -> str:
    """Return the name of a run, or what the names of several have in common: `long` for `long-0` and `long-1`."""
    first, *others = [run.name for run in runs]
    if not others:
        return first
    length = next((n for n in range(len(first), 0, -1) if all(name.startswith(first[:n]) for name in others)), 0)
    return first[:length].rstrip("-_.0123456789 ") or f"{first} and {len(others)} more"


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names, with a number behind repeated ones."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result
