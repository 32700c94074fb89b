"""A report of runs: one HTML page that needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import attrs
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hooktrainer.run.history import RunHistory
from hooktrainer.run.record import Start
from hooktrainer.run.report.charts import Drawing, drawing_of
from hooktrainer.run.report.defaults import chosen_settings
from hooktrainer.run.report.groups import SCORES, Group, differences, grouped
from hooktrainer.run.report.headline import Headline, duration, headline_of, mean_of
from hooktrainer.run.report.notes import notes_on
from hooktrainer.run.report.samples import shown_samples

GENERATOR: Final = "hooktrainer report"
"""Name of the generator in the page, by which a report is recognized."""
_ASSETS: Final = files(__package__) / "assets"
DASH: Final = "\N{EN DASH}"
"""Stands for a value that is not known."""
_HOOK: Final = "timing_s/hook/"
_STEP: Final = "timing_s/step"
_COLOURS: Final = 8
"""Colours of groups; further groups repeat them, and are dashed."""


def page_of(runs: Sequence[RunHistory]) -> str:
    """Return the page of one or several runs."""
    groups = grouped(runs)
    drawing = drawing_of(groups)
    style, script = (_asset(f"page.{kind}") for kind in ("css", "js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    return environment.from_string(
        _asset("page.html")
    ).render(
        generator=GENERATOR,
        style=Markup(style),  # noqa: S704 (our own file)
        script=Markup(script),  # noqa: S704 (our own file)
        style_hash=_hash(style),
        script_hash=_hash(script),
        title=", ".join(group.name for group in groups[:3]) + (", …" if len(groups) > 3 else ""),
        groups=[_group(place, group) for place, group in enumerate(groups)],
        runs=[_run(run, place) for place, group in enumerate(groups) for run in group.runs],
        differing=differences(groups) if len(groups) > 1 else {},
        handlers=_handlers(groups),
        drawing=drawing,
        data=_data(groups, drawing),
        version=version("hooktrainer"),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def number(value: float | None) -> str:
    """Format a figure with four digits; a dash if there is none."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the policy of the page admits its own script and style, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _group(place: int, group: Group) -> dict[str, Any]:
    heads = [headline_of(run) for run in group.runs]
    metric = next((metric for metric in SCORES if any(head.metric == metric for head in heads)), "")
    judged = [head for head in heads if head.metric == metric]
    return {
        "name": group.name,
        "colour": place % _COLOURS,
        "seeds": ", ".join(str(seed) for seed in group.seeds if seed is not None),
        "count": len(heads),
        "metric": metric,
        "last": _spread([head.last for head in judged]),
        "best": _spread([head.best for head in judged]),
    }


def _spread(values: Sequence[float | None]) -> str:
    """Format a figure over seeds: mean and range."""
    known = [value for value in values if value is not None]
    if not known:
        return DASH
    mean = number(sum(known) / len(known))
    return mean if len(known) == 1 else f"{mean} ({number(min(known))} to {number(max(known))})"


def _run(run: RunHistory, group: int) -> dict[str, Any]:
    head = headline_of(run)
    return {
        "name": run.name,
        "directory": str(run.directory.absolute()),
        "colour": group % _COLOURS,
        "state": run.state,
        "reason": run.reason,
        "seed": run.settings.get("seed"),
        "parts": [
            (key, run.settings[f"{key}.use"]) for key in ("task", "model", "rollout") if f"{key}.use" in run.settings
        ],
        "algorithm": run.settings.get("algorithm.adv_estimator"),
        "head": head,
        "tiles": list(_tiles(run, head)),
        "notes": list(notes_on(run)),
        "starts": [_start(start) for start in run.record.starts] if run.record else [],
        "plan": run.plan,
        "config": run.config,
        "chosen": chosen_settings(run),
        "samples": shown_samples(run.samples),
    }


def _tiles(run: RunHistory, head: Headline) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and further text of the figures at the top."""
    if head.metric:
        kind = "held-out" if head.metric.startswith("val/") else "training"
        yield f"best {kind} score", number(head.best), f"step {head.best_step}"
        yield f"last {kind} score", number(head.last), f"first {number(head.first)}"
    yield "steps", str(head.steps), f"of {head.total_steps}" if head.total_steps is not None else ""
    per_step = mean_of(run, _STEP)
    yield "time", head.duration, "" if per_step is None else f"{duration(per_step)} per step"
    for metric, label, unit in (
        ("perf/throughput", "throughput", "tokens per second"),
        ("perf/goodput/learner/training", "goodput", "of the time is training"),
        ("training/off_policy/staleness/mean", "staleness", "mean; 1 is fresh"),
    ):
        if (value := mean_of(run, metric)) is not None:
            yield label, f"{value:.0%}" if label == "goodput" else number(value), unit


def _start(start: Start) -> dict[str, Any]:
    end: Mapping[str, Any] = start.end or {}
    reason = f" ({end['reason']})" if end.get("reason") else ""
    return {
        "time": start.time,
        "host": f"{start.host}, pid {start.pid}",
        "from": start.resumed_from or end.get("resumed_from", 0),
        "end": f"{start.state}{reason}" if end else "not recorded",
        "step": end.get("step", DASH),
        "commit": start.git_commit or DASH,
        "packages": ", ".join(f"{name} {number}" for name, number in start.packages.items()),
        "command": " ".join(start.command),
        "directory": start.directory,
    }


def _handlers(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the mean seconds per step of each plugin, and their share of the step, the largest first."""
    keys = dict.fromkeys(
        key for group in groups for run in group.runs for key in run.metrics.columns if key.startswith(_HOOK)
    )
    found = []
    for key in keys:
        seconds = [_mean(group, key) for group in groups]
        shares = [_share(spent, _mean(group, _STEP)) for spent, group in zip(seconds, groups, strict=True)]
        found.append({"plugin": key.removeprefix(_HOOK), "seconds": seconds, "shares": shares})
    return sorted(found, key=lambda row: -max((value for value in row["seconds"] if value is not None), default=0.0))


def _mean(group: Group, key: str) -> float | None:
    known = [value for run in group.runs if (value := mean_of(run, key)) is not None]
    return sum(known) / len(known) if known else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _data(groups: Sequence[Group], drawing: Drawing) -> dict[str, Any]:
    """Return what the script draws."""
    marks = [
        {"group": place, "step": start["from"], "run": run.name}
        for place, group in enumerate(groups)
        for run in group.runs
        for start in map(_start, run.record.starts if run.record else ())
        if start["from"]
    ]
    names = [{"name": group.name, "seeds": len(group.runs)} for group in groups]
    return {"groups": names, "restarts": marks, **attrs.asdict(drawing)}
