"""Run directories as runs leave them, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hooktrainer.run.record import FILE, RunRecord, Start

CONFIG = """\
seed: {seed}
task: {{use: sort_digits, digits: 6}}
model: {{use: decoder}}
rollout: {{use: thread, n: 8}}
algorithm: {{adv_estimator: grpo, gamma: null, entropy_coeff: 0.1}}
optim: {{lr: {lr}, beta1: 0.9}}
trainer: {{total_steps: 4, train_batch_size: 64, ppo_mini_batch_size: 16, parameter_sync_step: 4}}
run: {{name: some, dir: /runs, resume: 'off'}}
plugins:
- use: metric_aggregation
- {{use: staleness, max_off_policy_threshold: 2}}
- {{use: "/home/me/kl_stop.py:KLStop", name: kl_stop, limit: 0.2}}
"""


def row(step: int, score: float, **more: object) -> dict[str, Any]:
    """Return a row with the metrics of a small run."""
    goodput = {"training": 0.75, "waiting_for_groups": 0.25, "syncing": 0.0, "validating": 0.0, "other": 0.0}
    return {
        "step": step,
        "critic/score/mean": score,
        "actor/pg_loss": -0.1 * step,
        "timing_s/step": 0.5,
        "timing_s/gen": 0.2,
        "timing_s/hook/weight_sync": 0.125,
        "timing_s/group/0.1": 64,
        "training/off_policy/staleness/mean": 1.5,
        "training/off_policy/staleness/min": 1.0,
        "training/off_policy/staleness/max": 2.0,
        **{f"perf/goodput/learner/{name}": share for name, share in goodput.items()},
        **more,
    }


def written(
    directory: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int = 0,
    lr: float = 0.0005,
    starts: Sequence[Mapping[str, Any]] = ({},),
    tail: str = "",
) -> Path:
    """Write the directory of a run, with one start for each mapping of changes, and text after its rows."""
    directory.mkdir(parents=True)
    end = {
        "time": "2026-05-04T09:30:00+00:00",
        "status": "completed",
        "reason": "all 4 steps are done",
        "step": len(rows),
    }
    start = attrs.evolve(Start.now(), end={**end, "resumed_from": 0, "seconds": 12.5}, git_commit="0123456789abcdef")
    record = RunRecord(total_steps=4, starts=[attrs.evolve(start, **change) for change in starts])
    (directory / FILE).write_text(record.text())
    (directory / "config.yaml").write_text(CONFIG.format(seed=seed, lr=lr))
    (directory / "plan.txt").write_text("step_end\n  600 REPORT   log_after_collect.write <b>\n")
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows) + tail)
    return directory
