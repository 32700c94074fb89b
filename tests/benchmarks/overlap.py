"""Measure how well sampling and learning overlap: the time of both at once over that of the slower one alone.

python tests/benchmarks/overlap.py

1.00 is a perfect overlap. 2.00 is no overlap, if sampling and learning take equal time. Each uses one intra-op thread.
The first line is the limit of the machine: learning, while an independent process learns too. In the last line, a loop
samples and learns in turn with two threads; its time is divided by the slower half of the line above.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event

import attrs
import torch

from hooktrainer import build_trainer
from hooktrainer.ports import Group
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.sort_digits import SortDigits

ROUNDS, BATCHES, SIZE = 7, 8, 16
AHEAD = 2  # mini-batches; with one, every difference between two of them is waited for


@attrs.frozen(kw_only=True)
class ToolCall(SortDigits):
    """Sort digits, with a score that waits in real time, as for a tool call."""

    seconds: float = 0.005

    def grade(self, truth: str, answer: str) -> float:
        """Wait, then score."""
        time.sleep(self.seconds)
        return super().grade(truth, answer)


@attrs.frozen
class Variant:
    """One line of the table."""

    name: str
    task: str
    engine: str
    n: int
    length: int
    limit: str = ""
    threads: int = 1


VARIANTS = (
    Variant("waiting reward, thread", f"{__file__}:ToolCall", "thread", 4, 2, "at most 1.05"),
    Variant("compute, thread", "sort_digits", "thread", 2, 24),
    Variant("compute, process", "sort_digits", "process", 2, 24, "at most 1.18"),
    Variant("compute, inline, 2 threads", "sort_digits", "inline", 2, 24, threads=2),
)


class Run:
    """The ports of a run, driven as its loop drives them."""

    def __init__(self, variant: Variant) -> None:
        rollout = {"use": variant.engine, "n": variant.n, "max_response_length": variant.length}
        if variant.engine == "process":
            rollout["workers"] = 1
        config = config_from_mapping(
            {
                "task": {"use": variant.task, "digits": 6},
                "model": {"use": "decoder", "width": 192 if "Tool" in variant.task else 96},
                "rollout": rollout,
                "trainer": {"total_steps": 1, "train_batch_size": SIZE, "ppo_mini_batch_size": SIZE},
                "plugins": ["weight_sync"],
                "run": {"name": "-".join(variant.name.replace(",", "").split())},
            }
        )
        self.variant = variant
        self.ports = build_trainer(config).ports
        self.ports.engine.stage(self.ports.learner.weights(), 0)
        self.ports.engine.flip()
        self.ports.engine.start(self.ports.buffer)
        self.dispatch()
        self.groups = self.sample()

    def dispatch(self) -> None:
        """Dispatch one more mini-batch."""
        self.ports.buffer.dispatch(self.ports.prompts.take(SIZE))

    def sample(self) -> Sequence[Group]:
        """Return the next mini-batch."""
        return self.ports.buffer.sample(SIZE, 1, lambda _: self.ports.engine.pump()).groups

    def learn(self) -> None:
        """Run one update."""
        self.ports.learner.update(self.groups)

    def seconds(self, *steps: Callable[[], object]) -> float:
        """Return the seconds per mini-batch of these steps, with `AHEAD` more mini-batches dispatched."""
        torch.set_num_threads(self.variant.threads)
        ahead = AHEAD if self.sample in steps else 0
        for _ in range(ahead):
            self.dispatch()
        began = time.perf_counter()
        for _ in range(BATCHES):
            for step in steps:
                step()
        taken = time.perf_counter() - began
        for _ in range(ahead):
            self.sample()
        return taken / BATCHES

    def round(self) -> tuple[float, float, float]:
        """Return the seconds of sampling alone, learning alone, and both."""
        return (
            self.seconds(self.dispatch, self.sample),
            self.seconds(self.learn),
            self.seconds(self.dispatch, self.learn, self.sample),
        )


def learn_while_active(active: Event) -> None:
    """Train an independent learner while `active` is set."""
    os.chdir(tempfile.mkdtemp())
    run = Run(VARIANTS[-1])
    torch.set_num_threads(1)
    while active.wait():
        run.learn()


@contextmanager
def independent_learner() -> Iterator[Event]:
    """Start an independent process; yield the event that makes it learn."""
    context = get_context("spawn")
    active = context.Event()
    process = context.Process(target=learn_while_active, args=(active,), daemon=True)
    process.start()
    yield active
    process.kill()
    process.join()


def control(run: Run, active: Event) -> tuple[float, float, float]:
    """Return the seconds of learning in this process, in the other process, and in both."""
    alone = run.seconds(run.learn)
    active.set()
    both = run.seconds(run.learn)
    active.clear()
    return alone, alone, both


def main() -> None:
    """Measure all lines in turn, and print their medians."""
    os.chdir(tempfile.mkdtemp())
    runs = [Run(variant) for variant in VARIANTS]
    with independent_learner() as active:
        rounds = [[control(runs[1], active), *(run.round() for run in runs)] for _ in range(ROUNDS)]
    slower = [[max(line[:2]) for line in lines] for lines in rounds]
    for lines in slower:
        lines[-1] = lines[-2]
    print(f"{'ms a mini-batch':<28}{'sample':>8}{'learn':>8}{'both':>8}{'overlap':>9}")
    names = [("two unrelated processes", ""), *((variant.name, variant.limit) for variant in VARIANTS)]
    for place, (name, limit) in enumerate(names):
        parts = [statistics.median(lines[place][part] for lines in rounds) * 1e3 for part in range(3)]
        overlap = statistics.median(lines[place][2] / slow[place] for lines, slow in zip(rounds, slower, strict=True))
        print(f"{name:<28}{parts[0]:8.1f}{parts[1]:8.1f}{parts[2]:8.1f}{overlap:9.2f}   {limit}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"median of {ROUNDS} interleaved rounds of {BATCHES} mini-batches; {os.cpu_count()} cores, load {load}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    for run in runs:
        run.ports.engine.close()


if __name__ == "__main__":
    main()
