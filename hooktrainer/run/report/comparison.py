"""Runs compared over seeds: a table of final scores, and a figure of the curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hooktrainer.errors import ConfigError, did_you_mean
from hooktrainer.run.history import RunHistory
from hooktrainer.run.report.curves import curve_of
from hooktrainer.run.report.groups import EXACT, SCORES, Group
from hooktrainer.run.report.headline import score_of
from hooktrainer.run.report.training import cpu_seconds_of

_NONE = "-"


def metric_of(groups: Sequence[Group], wanted: str | None = None) -> str:
    """Return the metric that runs are compared by: the wanted one, or the first score that every run has.

    Raises `ConfigError` if there is none.
    """
    runs = [run for group in groups for run in group.runs]
    for metric in [wanted] if wanted else SCORES:
        if all(score_of(run, [metric])[0] for run in runs):
            return metric
    tried = [wanted] if wanted else SCORES
    lacks = next(run for run in runs if not score_of(run, [tried[-1]])[0])
    hint = did_you_mean(tried[-1], lacks.metrics.columns)
    raise ConfigError(f"no row of {lacks.directory} has {' or '.join(tried)}.{hint}")


def table(groups: Sequence[Group], metric: str) -> str:
    """Format a Markdown table: final values by seed, mean and standard deviation, exact answers, time."""
    seeds = list(dict.fromkeys(seed for group in groups for seed in group.seeds))
    seeds.sort(key=lambda seed: (not isinstance(seed, int), seed if isinstance(seed, int) else 0))
    exact = {name: EXACT[place] for place, name in enumerate(SCORES)}.get(metric)
    titles = [
        "run",
        *(f"seed {_NONE if seed is None else seed}" for seed in seeds),
        "mean ± std",
        "exact",
        "s",
        "CPU s",
    ]
    lines = [titles, ["---"] * len(titles)]
    for group in groups:
        final = [_last(run, metric) for run in group.runs]
        by_seed = [[value for of, value in zip(group.seeds, final, strict=True) if of == seed] for seed in seeds]
        known = [value for value in final if value is not None]
        spread = f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
        lines.append(
            [
                group.name.replace("|", "\\|"),
                *(", ".join(f"{value:.3f}" for value in values if value is not None) or _NONE for values in by_seed),
                f"{statistics.mean(known):.3f}{spread}",
                _mean([_last(run, exact) if exact else None for run in group.runs], ".3f"),
                _mean([run.seconds for run in group.runs], ".0f"),
                _mean([cpu_seconds_of(run) for run in group.runs], ".0f"),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def require_plots() -> None:
    """Raise `ConfigError` if figures cannot be drawn."""
    try:
        import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        raise ConfigError('--figure needs matplotlib: pip install "hooktrainer[plot]"') from None


def draw(groups: Sequence[Group], metric: str, path: Path) -> None:
    """Draw the mean over the steps, with the range over the seeds; the ending of the file chooses the format.

    Raises `ConfigError` if the file cannot be written.
    """
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.add_subplot()
    for group in groups:
        curve = curve_of([run.metrics.columns[metric] for run in group.runs])
        (line,) = axes.plot(curve.steps, curve.values, label=group.name)
        if curve.low is not None:
            axes.fill_between(curve.steps, curve.low, curve.high, alpha=0.15, color=line.get_color())
    axes.set(xlabel="step", ylabel="held-out score" if metric == SCORES[0] else metric)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--figure {path} cannot be written: {error}") from None


def _last(run: RunHistory, metric: str) -> float | None:
    _, column = score_of(run, [metric])
    return None if column is None else float(column.values[-1])


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):{form}}" if len(known) == len(values) else _NONE
