"""The charts of a page: which metrics are drawn together, and in which section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np

from hooktrainer.run.report.curves import Curve, curve_of
from hooktrainer.run.report.groups import EXACT, SCORES, Group
from hooktrainer.run.rows import Column

_Kind = Literal["lines", "stack"]
_GOODPUT: Final = "perf/goodput"
_HISTOGRAM: Final = re.compile(r"^timing_s/group/[\d.e+-]+$")
"""Buckets of a histogram, one metric each."""
_NUMBERS: Final = 300_000
"""Numbers on a page, about 8 bytes each."""
_POINTS: Final = 500
"""Most points of a curve: about one per pixel of a chart."""
_FEWEST: Final = 20


@attrs.frozen
class Chart:
    """Metrics that are drawn together, where a page has one run; with several runs, each metric has a chart."""

    title: str
    keys: Sequence[str] = ()
    pattern: str | None = None
    """A regular expression for further metrics."""
    kind: _Kind = "lines"
    ranged: bool = False
    """Whether the range between `…/min` and `…/max` is drawn around `…/mean`."""

    def found(self, known: Iterable[str]) -> list[str]:
        """Return the metrics of the chart that are known."""
        names = dict.fromkeys(known)
        matching = [key for key in names if self.pattern and re.fullmatch(self.pattern, key)]
        return list(dict.fromkeys([*(key for key in self.keys if key in names), *matching]))


def _goodput(of: str, *parts: str) -> Chart:
    return Chart(f"Time of the {of}", [f"{_GOODPUT}/{of}/{part}" for part in parts], kind="stack")


SECTIONS: Final[Mapping[str, Sequence[Chart]]] = {
    "Score": (
        Chart("Score", SCORES),
        Chart("Exact answers", EXACT),
        Chart("Rewards", pattern=r"reward/.+/mean"),
        Chart("Validation", pattern=r"val/(?!score/|exact_match/|response_length/).+/mean"),
    ),
    "Learning": (
        Chart("Policy loss", ["actor/pg_loss"]),
        Chart("Entropy", ["actor/entropy"]),
        Chart("KL to the sampler", ["actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"]),
        Chart("Gradient norm", ["actor/grad_norm"]),
        Chart("Clipped tokens", ["actor/pg_clipfrac", "actor/pg_clipfrac_lower"]),
        Chart("Learning rate", ["actor/lr"]),
        Chart("Value loss", ["critic/vf_loss"]),
        Chart("Explained variance of values", ["critic/vf_explained_var"]),
    ),
    "Staleness": (
        Chart("Staleness (1 is fresh)", ["training/off_policy/staleness/mean"], ranged=True),
        Chart("Updates behind", ["training/off_policy/updates_behind/mean"], ranged=True),
        Chart(
            "Steps in flight and in the queue",
            ["training/off_policy/in_flight/mean", "training/off_policy/in_queue/mean"],
        ),
        Chart("Versions of one answer", ["training/off_policy/trajectory_spans/mean"], ranged=True),
        Chart("Dropped answers", pattern=r"training/off_policy/(evicted|dropped|discarded)\w*_samples"),
    ),
    "Goodput": (
        _goodput("learner", "training", "waiting_for_groups", "syncing", "validating", "other"),
        _goodput("engine", "generating", "waiting_for_groups", "waiting_for_weights", "wasted"),
        Chart("Tokens per second", ["perf/throughput"]),
        Chart("Generated tokens per second of a worker", ["perf/rollout_tokens_per_worker_second"]),
    ),
    "Time": (
        Chart("Seconds per step", ["timing_s/step"], pattern=r"timing_s/(?!engine_wait|generate$)\w+"),
        Chart("Seconds of handlers, by plugin", pattern=r"timing_s/hook/.+"),
        Chart(
            "Seconds of engines", ["timing_s/generate", "timing_s/engine_wait_groups", "timing_s/engine_wait_weights"]
        ),
    ),
    "Lengths": (
        Chart("Length of answers, in tokens", ["response_length/mean"], ranged=True),
        Chart("Length of prompts, in tokens", ["prompt_length/mean"], ranged=True),
        Chart("Answers cut at the longest length", ["response_length/clip_ratio"]),
        Chart("Length of answers in validation, in tokens", ["val/response_length/mean"]),
    ),
}
"""Sections in the order of the page. Metrics of none of them are in a section of their own, by prefix."""


@attrs.frozen(kw_only=True)
class Drawing:
    """The charts of a page by section, and the curves and axes that they share, as data of the page."""

    sections: Mapping[str, Sequence[Mapping[str, Any]]]
    """A section without a metric is left out. The last one has every metric alone."""
    curves: Sequence[Mapping[str, Any]]
    axes: Sequence[Sequence[int]]


def drawing_of(groups: Sequence[Group]) -> Drawing:
    """Return the charts of some groups of runs."""
    columns = [_columns(group) for group in groups]
    known = sorted({key for of_group in columns for key in of_group if not _HISTOGRAM.match(key)})
    curves = _Curves(columns)
    found = {
        title: [curves.chart(title, keys, chart) for chart in charts for title, keys in _split(chart, known, groups)]
        for title, charts in SECTIONS.items()
    }
    found["All metrics"] = [curves.chart(key, [key], Chart(key)) for key in known]
    sections = {title: charts for title, charts in found.items() if charts}
    return Drawing(sections=sections, curves=curves.made, axes=curves.axes)


def _split(chart: Chart, known: Sequence[str], groups: Sequence[Group]) -> Iterator[tuple[str, list[str]]]:
    keys = chart.found(known)
    if len(keys) > 1 and len(groups) > 1:
        yield from ((key, [key]) for key in keys)
    elif keys:
        yield chart.title, keys


def _columns(group: Group) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for run in group.runs:
        for key, column in run.metrics.columns.items():
            found.setdefault(key, []).append(column)
    return found


class _Curves:
    """Makes the curves of charts, each once."""

    def __init__(self, columns: Sequence[Mapping[str, list[Column]]]) -> None:
        self.made: list[dict[str, Any]] = []
        self.axes: list[list[int]] = []
        self._places: dict[object, int] = {}
        self._columns = columns
        count = sum(len(of_group) for of_group in columns)
        self._points = min(_POINTS, max(_FEWEST, _NUMBERS // (4 * max(1, count))))

    def chart(self, title: str, keys: Sequence[str], chart: Chart) -> dict[str, Any]:
        """Return the data of a chart."""
        places = [(place, key) for place, known in enumerate(self._columns) for key in keys if key in known]
        stacked = chart.kind == "stack" and self._can_be_stacked(keys)
        series = [self._curve(place, key, chart, stacked=stacked) for place, key in places]
        return {"title": title, "kind": "stack" if stacked else "lines", "series": series}

    def _can_be_stacked(self, keys: Sequence[str]) -> bool:
        """Return whether there is one run, whose rows have all of the metrics at the same steps."""
        found = [self._columns[0][key] for key in keys] if len(self._columns) == 1 and len(keys) > 1 else []
        steps = [columns[0].finite.steps for columns in found if len(columns) == 1]
        return len(steps) == len(keys) and all(np.array_equal(steps[0], other) for other in steps)

    def _curve(self, place: int, key: str, chart: Chart, *, stacked: bool) -> int:
        made = self._places.setdefault((place, key, stacked), len(self.made))
        if made == len(self.made):
            self.made.append(self._made(place, key, self._full(place, key, chart), stacked=stacked))
        return made

    def _full(self, place: int, key: str, chart: Chart) -> Curve:
        of_group = self._columns[place]
        if not chart.ranged or len(self._columns) > 1:
            return curve_of(of_group[key])
        low, high = (of_group.get(key.removesuffix("mean") + end, [None])[0] for end in ("min", "max"))
        return curve_of(of_group[key], low=low, high=high)

    def _made(self, place: int, key: str, full: Curve, *, stacked: bool) -> dict[str, Any]:
        curve = full.thinned(self._points)
        data = {"key": key, "group": place, "x": self._axis(curve), "y": _plain(curve.values)}
        if not stacked and curve.low is not None and curve.high is not None:
            data |= {"low": _plain(curve.low), "high": _plain(curve.high)}
        if curve.nonfinite:
            data["nonfinite"] = curve.nonfinite
        return data | ({"rows": curve.rows} if curve.rows > 1 else {})

    def _axis(self, curve: Curve) -> int:
        place = self._places.setdefault(curve.steps.tobytes(), len(self.axes))
        if place == len(self.axes):
            self.axes.append(curve.steps.tolist())
        return place


def _plain(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return numbers with six digits, and whole ones as integers, which are shorter."""
    rounded = (float(f"{value:.6g}") for value in values.tolist())
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in rounded]
