"""Print what a run is doing, without disturbing it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from hooktrainer._util.streams import write_result
from hooktrainer.cli._run import add_run_argument, found_run

if TYPE_CHECKING:
    from hooktrainer.run.record import Start


_SHOWN: Final = ("critic/score/mean", "val/score/mean", "actor/entropy", "response_length/mean", "timing_s/step")
"""Metrics of the last row that are printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run."""
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print state, step, remaining time and last row."""
    from hooktrainer.run.rows import last_row

    directory, record = found_run(args.directory)
    start = record.starts[-1]
    row = last_row(directory)
    found = {
        "run": str(directory.absolute()),
        "state": start.state,
        "pid": start.pid,
        "host": start.host,
        "started": start.time,
        "starts": len(record.starts),
        "step": (start.end or {}).get("step", row and row["step"]),
        "total_steps": record.total_steps,
        "seconds_left": _seconds_left(row, record.total_steps) if start.is_active else None,
        "row": row,
    }
    write_result(json.dumps(found) + "\n" if args.json else _text(found, start))
    return 0


def _text(found: dict[str, Any], start: Start) -> str:
    state = found["state"]
    reason = f" ({start.end['reason']})" if start.end and start.end["reason"] else ""
    process = f", pid {start.pid}" if state == "running" else ""
    elsewhere = f": it was started on {start.host}, and its end is not recorded" if state == "unknown" else ""
    total = "" if found["total_steps"] is None else f"/{found['total_steps']}"
    left = "" if found["seconds_left"] is None else f", about {_duration(found['seconds_left'])} left"
    lines = [
        f"{found['run']}: {state}{reason}{process}{elsewhere}",
        f"started {start.time}" + (f", start {found['starts']} of this run" if found["starts"] > 1 else ""),
    ]
    if start.end:
        lines.append(f"ended {start.end['time']}")
    if found["step"] is None:
        lines.append("step unknown: the run has no row in metrics.jsonl, which the sink jsonl writes")
    else:
        lines.append(f"step {found['step']}{total}{left}")
    lines += [f"  {key}: {value}" for key, value in _shown(found["row"] or {}).items()]
    return "\n".join(lines) + "\n"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in _SHOWN if key in row}


def _seconds_left(row: dict[str, Any] | None, total_steps: int | None) -> float | None:
    if row is None or total_steps is None or not isinstance(row.get("timing_s/step"), float):
        return None
    return float(row["timing_s/step"] * (total_steps - row["step"]))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
