"""Compare configurations over seeds: a table of final scores, and a figure of the curves.

    python examples/compare.py examples/studies/algorithms.yaml --seeds 0 1 2 --jobs 2
    python examples/compare.py examples/studies/stale_data.yaml --seeds 0 1 2 --figure stale_data.svg

A study lists runs, each with its configuration files, of which later ones override earlier ones, and its overrides.
Every run is a separate process. Finished runs are not repeated, unless their command or a configuration file changed.
The figure needs matplotlib: `pip install "hooktrainer[plot]"`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import attrs
import yaml  # type: ignore[import-untyped]

METRIC = "val/score/mean"
EXACT = "val/exact_match/mean"


@attrs.frozen
class Variant:
    """One line of the table."""

    name: str
    configs: tuple[Path, ...]
    overrides: tuple[str, ...]


@attrs.frozen
class Run:
    """Results of one seed of a variant."""

    steps: tuple[int, ...]
    scores: tuple[float, ...]
    exact: float
    cpu_seconds: float
    """CPU time of all threads and worker processes, which depends less on the load of the machine than elapsed time."""


def read_study(path: Path) -> list[Variant]:
    """Read the variants of a study; configurations are relative to its file."""
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    always = study.get("overrides", [])
    return [
        Variant(
            name,
            tuple((path.parent / config).resolve() for config in [*study.get("configs", []), *run.get("configs", [])]),
            (*always, *run.get("overrides", [])),
        )
        for name, run in study["runs"].items()
    ]


def train(variant: Variant, seed: int, runs: Path) -> Run:
    """Return the run of one seed; train it unless it is complete."""
    folder = folder_of(variant, seed)
    done, origin = runs / folder / "cpu_seconds", runs / folder / "made_by.json"
    command, now = arguments(variant, seed, runs), made_by(variant, seed, runs)
    if not (done.exists() and origin.exists() and origin.read_text(encoding="utf-8") == now):
        done.unlink(missing_ok=True)
        code, said, cpu_seconds = finished([sys.executable, "-m", "hooktrainer", "fit", *command])
        if code:
            raise SystemExit(f"{variant.name}, seed {seed}: exit {code}\n{said}")
        origin.write_text(now, encoding="utf-8")
        done.write_text(f"{cpu_seconds}\n")
    found = read_run(runs / folder)
    print(f"{variant.name}, seed {seed}: {found.scores[-1]:.3f} after {found.cpu_seconds:.0f} s of CPU", flush=True)
    return found


def folder_of(variant: Variant, seed: int) -> str:
    """Return the name of the run."""
    return f"{''.join(c if c.isalnum() else '_' for c in variant.name)}-{seed}"


def arguments(variant: Variant, seed: int, runs: Path) -> list[str]:
    """Return the arguments of `hooktrainer fit`."""
    place = [f"seed={seed}", f"run.dir={runs}", f"run.name={folder_of(variant, seed)}"]
    return [*map(str, variant.configs), *variant.overrides, *place]


def made_by(variant: Variant, seed: int, runs: Path) -> str:
    """Return the arguments of a run and the hashes of its configuration files, on which the run depends."""
    files = [hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "" for path in variant.configs]
    return json.dumps({"fit": arguments(variant, seed, runs), "configs": files}, indent=2)


def train_all(variants: Sequence[Variant], seeds: Sequence[int], runs: Path, jobs: int) -> dict[str, list[Run]]:
    """Return the runs of all variants and seeds. After a failure or Ctrl-C, no further run is started."""
    ended = threading.Event()

    def one(variant: Variant, seed: int) -> Run:
        if ended.is_set():
            raise CancelledError
        try:
            return train(variant, seed, runs)
        except BaseException:
            ended.set()
            raise

    with ThreadPoolExecutor(jobs) as pool:
        pending = {variant.name: [pool.submit(one, variant, seed) for seed in seeds] for variant in variants}
        try:
            wait([future for futures in pending.values() for future in futures], return_when=FIRST_EXCEPTION)
        finally:  # wait for the runs in progress
            ended.set()
            pool.shutdown(cancel_futures=True)
    every = [future for futures in pending.values() for future in futures]
    failed = [future.exception() for future in every if not future.cancelled()]
    for error in failed:
        if error is not None and not isinstance(error, CancelledError):
            raise error
    return {name: [future.result() for future in futures] for name, futures in pending.items()}


def finished(command: Sequence[str]) -> tuple[int, str, float]:
    """Run a command; return its exit code, its standard error, and its CPU seconds, including child processes."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603 (our own command)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return child.returncode, errors.read(), used.ru_utime + used.ru_stime


def read_run(folder: Path) -> Run:
    """Read the validations and the CPU time of a run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    judged = [row for row in rows if METRIC in row]
    return Run(
        steps=tuple(row["step"] for row in judged),
        scores=tuple(row[METRIC] for row in judged),
        exact=judged[-1][EXACT],
        cpu_seconds=float((folder / "cpu_seconds").read_text()),
    )


def table(runs: Mapping[str, Sequence[Run]], seeds: Sequence[int]) -> str:
    """Format a Markdown table: final scores by seed, mean and standard deviation, exact answers, CPU time."""
    titles = ["run", *(f"seed {seed}" for seed in seeds), "mean ± std", "exact", "CPU s"]
    lines = [titles, ["---"] * len(titles)]
    for name, of_seeds in runs.items():
        final = [run.scores[-1] for run in of_seeds]
        spread = f" ± {statistics.stdev(final):.3f}" if len(final) > 1 else ""
        exact = statistics.mean(run.exact for run in of_seeds)
        seconds = statistics.mean(run.cpu_seconds for run in of_seeds)
        scores = [f"{score:.3f}" for score in final]
        lines.append([name, *scores, f"{statistics.mean(final):.3f}{spread}", f"{exact:.3f}", f"{seconds:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(runs: Mapping[str, Sequence[Run]], path: Path) -> None:
    """Draw the mean score over the steps, with the range over the seeds."""
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("svg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, of_seeds in runs.items():
        columns = list(zip(*(run.scores for run in of_seeds), strict=True))
        steps: Any = of_seeds[0].steps
        (line,) = axes.plot(steps, [statistics.mean(column) for column in columns], label=name)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.15, color=line.get_color())
    axes.set(xlabel="step", ylabel="held-out score")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    print(f"drawn: {path}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("overrides", nargs="*", help="key=value, for every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, help="where runs are kept (default: runs/STUDY)")
    parser.add_argument("--figure", type=Path, help="draw the curves into this file")
    args = parser.parse_args(argv)
    runs = (args.runs or Path("runs") / args.study.stem).resolve()
    variants = [
        attrs.evolve(variant, overrides=(*variant.overrides, *args.overrides)) for variant in read_study(args.study)
    ]
    found = train_all(variants, args.seeds, runs, args.jobs)
    print(table(found, args.seeds))
    if args.figure:
        draw(found, args.figure)


if __name__ == "__main__":
    main()
