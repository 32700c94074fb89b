"""Measure the cost of a verified sync of a large model on one host, relative to copying its bytes.

python tests/benchmarks/weight_sync.py [THREADS]

50 million float32 weights (200 MB) are published to an engine with worker processes, through shared memory. The time of
the whole protocol, including both checksums, is divided by that of one `Tensor.copy_` of as many bytes by one thread.
The copy by all threads shows the limit of the machine. The canary runs the model, and has a separate line. The variants
run in turn, and medians are shown.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.policy import full_state
from hooktrainer.models.scoring import Scoring, text_logprobs
from hooktrainer.ports import Canary
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.tasks.addition import Addition
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.same_host import SameHostTransport

ROUNDS = 15
TASK = Addition()
TOKENIZER = CharTokenizer(TASK.alphabet)


def main(threads: int) -> None:
    """Measure and print."""
    torch.set_num_threads(threads)
    policy = partial(
        DecoderOptions(layers=16, width=512, heads=8).build, vocab_size=TOKENIZER.vocab_size, max_length=32, seed=0
    )
    engine = ProcessOptions(workers=1).build(
        GeneratorConfig(policy=policy, tokenizer=TOKENIZER, task=TASK, seed=0, max_length=32)
    )
    learner, transport, versions = policy(), SameHostTransport(), iter(range(10**6))
    weights = full_state(learner)
    source = torch.cat([tensor.reshape(-1) for tensor in weights.values()])
    target = torch.zeros_like(source)
    target.share_memory_()
    tokens = np.arange(8)
    canary = Canary(tokens=tokens, logprobs=text_logprobs(learner, tokens, Scoring()), atol=1e-4)
    ways: dict[str, Callable[[], object]] = {
        "plain copy": lambda: copy(target, source, 1),
        f"plain copy, {threads} threads": lambda: copy(target, source, threads),
        "sync": lambda: transport.publish(weights, next(versions), [engine]),
        "checksums alone": lambda: (checksum(source), checksum(target)),
        "sync with canary": lambda: transport.publish(weights, next(versions), [engine], canary=canary),
    }
    seconds = interleaved(ways)
    plain = seconds["plain copy"]
    print(f"{platform.machine()}, torch {torch.__version__}, {threads} threads, median of {ROUNDS} rounds")
    for name, median in seconds.items():
        speed = source.nbytes / median / 1e9
        print(f"{name:24} {median * 1e3:6.1f} ms {speed:6.2f} GB/s, {plain / median:.2f} of the plain copy's bandwidth")
    engine.close()


def copy(target: torch.Tensor, source: torch.Tensor, threads: int) -> None:
    """Copy with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    target.copy_(source)
    torch.set_num_threads(before)


def interleaved(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each variant, measured in turn, without the first rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 3):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(own[3:]) for name, own in seconds.items()}


def threads_of(arguments: Sequence[str]) -> int:
    """Return the number of threads on the command line."""
    return int(arguments[0]) if arguments else 1


if __name__ == "__main__":
    main(threads_of(sys.argv[1:]))
