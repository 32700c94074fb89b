"""Measure the peak memory of an update with a large vocabulary, relative to a bare forward and backward pass.

python tests/benchmarks/update_memory.py

The answers have 2,048 tokens, and the vocabulary has 50,000. The bare passes compute logits in chunks of 128 positions,
and again in the backward pass. "all at once" is an update that computes all logits at once. Each kind runs in a process
of its own. Memory is that of the whole process in MiB, "before" after the model was built.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.learner.options import OptimOptions
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.scoring import Scoring
from hooktrainer.ports import Example, Group, Prompt, Trajectory

VOCABULARY, ANSWERS, LENGTH, PROMPT, CHUNK = 50_000, 16, 128, 8, 128
KINDS: Mapping[str, Mapping[str, float]] = {
    "bare": {},
    "update": {},
    "entropy and divergence": {"entropy_coeff": 0.01, "kl_coeff": 0.1},
    "all at once": {},
}
TEXTS = torch.randint(2, VOCABULARY, (ANSWERS, PROMPT + LENGTH), generator=torch.Generator().manual_seed(0))


def measured(*kinds: str) -> dict[str, dict[str, float]]:
    """Measure each kind in a process of its own. glibc keeps freed memory above a threshold that it raises itself."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    found = {}
    for kind in kinds:
        command = [sys.executable, __file__, kind]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        found[kind] = json.loads(done.stdout)
    return found


def measure(kind: str) -> dict[str, float]:
    """Make two passes of a kind, and return memory before and at the peak, and the time of the second pass."""
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer of a process imports further modules
    model = DecoderOptions().build(vocab_size=VOCABULARY, max_length=PROMPT + LENGTH, seed=0)
    learner = PolicyGradientLearner(model, algorithm=AlgorithmOptions(**KINDS[kind]), optim=OptimOptions(lr=1e-6))
    if kind == "all at once":
        learner._objective._models = attrs.evolve(learner._models, scoring=Scoring())
    before = memory("VmRSS")
    started = 0.0
    for _ in range(2):
        started = time.perf_counter()
        if kind == "bare":
            bare_passes(model)
        else:
            learner.update([group()])
    return {"before": before, "peak": memory("VmHWM"), "seconds": time.perf_counter() - started}


def bare_passes(model: nn.Module) -> None:
    """Make a forward and a backward pass."""
    model.zero_grad()
    states = model.hidden(TEXTS[:, :-1], None, states_to_keep=LENGTH).flatten(0, 1)
    parts = zip(states.split(CHUNK), TEXTS[:, PROMPT:].flatten().split(CHUNK), strict=True)

    def score(states: Tensor, targets: Tensor) -> Tensor:
        return model.project(states).log_softmax(dim=-1).gather(-1, targets[:, None])[:, 0]

    torch.cat([checkpoint(score, *part, use_reentrant=False) for part in parts]).mean().backward()


def group() -> Group:
    """Return one group with all answers."""
    answers = tuple(
        Trajectory(
            tokens=text[PROMPT:].numpy(),
            logprobs=np.full(LENGTH, -np.log(VOCABULARY), np.float32),
            score=float(row % 2),
            versions=np.zeros(LENGTH, np.int64),
        )
        for row, text in enumerate(TEXTS)
    )
    return Group(number=0, stamp=1, prompt=Prompt(Example("?"), TEXTS[0, :PROMPT].numpy()), trajectories=answers)


def memory(field: str) -> float:
    """Return a figure of this process in MiB: VmRSS, the memory in use, or VmHWM, its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field))


def main() -> None:
    """Measure and print."""
    found = measured(*KINDS)
    for kind, values in found.items():
        figures = ", ".join(f"{name} {value:7.1f}" for name, value in values.items())
        print(f"{kind:23} {figures}, peak x{values['peak'] / found['bare']['peak']:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
