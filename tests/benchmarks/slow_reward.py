"""Measure how much a slow reward delays decoding: answers per second with a reward that sleeps, over those without.

python tests/benchmarks/slow_reward.py

A worker thread answers mini-batches of 64 answers, 8 to each prompt, and the reward sleeps 0.2 s for each prompt. Two
mini-batches are dispatched ahead, and nothing is trained. 1.00 means that the reward delays no answer. With
`workers: 1`, rewards are called one after the other, as if they ran on the thread that decodes.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence

import attrs
import torch

from hooktrainer import build_trainer
from hooktrainer.ports import Answer, Example
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.sort_digits import SortDigits

ROUNDS, BATCHES, PROMPTS, ANSWERS, AHEAD = 5, 4, 8, 8, 2


@attrs.frozen(kw_only=True)
class Judge(SortDigits):
    """Sort digits, with a `score` that sleeps, as for the reply of a judge."""

    seconds: float

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:
        """Sleep, then score."""
        if self.seconds:
            time.sleep(self.seconds)
        return super().score(example, answers)


class Run:
    """The ports of a run that only samples."""

    def __init__(self, name: str, seconds: float, workers: int) -> None:
        config = config_from_mapping(
            {
                "task": {"use": f"{__file__}:Judge", "digits": 6, "seconds": seconds},
                "model": {"use": "decoder", "layers": 2, "width": 256},
                "rollout": {"use": "thread", "n": ANSWERS, "slots": PROMPTS * ANSWERS, "max_response_length": 96},
                "reward": {"workers": workers},
                "trainer": {"total_steps": 1, "train_batch_size": PROMPTS, "ppo_mini_batch_size": PROMPTS},
                "plugins": ["weight_sync"],
                "run": {"name": name},
            }
        )
        self.ports = build_trainer(config).ports
        self.ports.engine.stage(self.ports.learner.weights(), 0)
        self.ports.engine.flip()
        self.ports.engine.start(self.ports.buffer)

    def rate(self) -> float:
        """Return the answers per second."""
        for _ in range(AHEAD + 1):
            self.dispatch()
        self.sample()
        began = time.perf_counter()
        for _ in range(BATCHES):
            self.dispatch()
            self.sample()
        rate = BATCHES * PROMPTS * ANSWERS / (time.perf_counter() - began)
        for _ in range(AHEAD):
            self.sample()
        return rate

    def dispatch(self) -> None:
        """Dispatch a mini-batch."""
        self.ports.buffer.dispatch(self.ports.prompts.take(PROMPTS))

    def sample(self) -> None:
        """Wait for a mini-batch."""
        self.ports.buffer.sample(PROMPTS, 1, lambda _: self.ports.engine.pump())


def main() -> None:
    """Measure all lines in turn, and print the medians."""
    os.chdir(tempfile.mkdtemp())
    torch.set_num_threads(1)
    runs = {
        "no sleep": Run("fast", 0.0, 8),
        "0.2 s, workers: 8": Run("slow", 0.2, 8),
        "0.2 s, workers: 1": Run("serial", 0.2, 1),
    }
    for run in runs.values():
        run.rate()
    rounds = [[run.rate() for run in runs.values()] for _ in range(ROUNDS)]
    print(f"{'reward':<20}{'answers/s':>10}{'ratio':>8}")
    for place, name in enumerate(runs):
        rate = statistics.median(rates[place] for rates in rounds)
        ratio = statistics.median(rates[place] / rates[0] for rates in rounds)
        print(f"{name:<20}{rate:10.0f}{ratio:8.2f}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"median of {ROUNDS} interleaved rounds of {BATCHES} mini-batches; {os.cpu_count()} cores, load {load}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    for run in runs.values():
        run.ports.engine.close()


if __name__ == "__main__":
    main()
