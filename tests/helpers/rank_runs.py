"""Runs on several ranks, each in a process that is forked from a server which has imported torch."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from hooktrainer.algorithms.advantages import grpo
from hooktrainer.cli import main

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["helpers.rank_runs", "hooktrainer.run.build", "torch._dynamo"])
PATIENCE_S = 60.0
"""Seconds for anything to happen on a busy machine."""
TINY = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 4, max_response_length: 4}
optim: {lr: 1e-3}
learner: {timeout_s: 60}
trainer: {total_steps: 4, train_batch_size: 2, ppo_mini_batch_size: 1, parameter_sync_step: 2, intra_op_threads: 1}
"""
_calls = 0


def faulty(rewards: Tensor, groups: Tensor) -> Tensor:
    """The advantages of GRPO. The rank `FAULTY_RANK` performs `FAULT` in its third update."""
    global _calls  # noqa: PLW0603 (a count of this process)
    _calls += 1
    if _calls == 3 and os.environ.get("FAULTY_RANK") == os.environ["RANK"]:
        match os.environ["FAULT"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ValueError("boom")
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
    return grpo(rewards, groups)


class RankRun:
    """`hooktrainer fit` on several ranks of this machine, which meet at a store of the test, as under torchrun."""

    def __init__(self, directory: Path, ranks: int, *arguments: str, **variables: str) -> None:
        self.directory = directory
        self._store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            **variables,
        }
        self.ranks = [
            CONTEXT.Process(target=_fit, args=(directory, rank, arguments, shared), name=f"rank-{rank}", daemon=True)
            for rank in range(ranks)
        ]
        for process in self.ranks:
            process.start()

    def until(self, text: str) -> None:
        """Wait until rank 0 has printed a text."""
        path, deadline = self.directory / "rank0.out", time.monotonic() + PATIENCE_S
        while not path.exists() or text not in path.read_text():
            assert self.ranks[0].is_alive(), self.texts()
            assert time.monotonic() < deadline, self.texts()
            time.sleep(0.01)

    def send(self, number: signal.Signals, *ranks: int) -> float:
        """Send a signal to some ranks, or to all; return the time."""
        for rank in ranks or range(len(self.ranks)):
            os.kill(self.ranks[rank].pid, number)
        return time.monotonic()

    def ended(self) -> list[int]:
        """Wait for all ranks; return their exit codes."""
        deadline = time.monotonic() + PATIENCE_S
        for process in self.ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        running = [process.name for process in self.ranks if process.is_alive()]
        self.kill()
        assert not running, (running, self.texts())
        sys.stdout.write(json.dumps(self.texts(), indent=1))  # shown if the test fails
        return [process.exitcode for process in self.ranks]

    def kill(self) -> None:
        """Kill the ranks that are left."""
        for process in self.ranks:
            process.kill()
            process.join()

    def texts(self) -> Mapping[str, str]:
        """Return what all ranks have printed."""
        return {path.name: path.read_text() for path in sorted(self.directory.glob("rank*"))}

    @property
    def ends(self) -> list[str]:
        """Return the lines that each `fit_end` of the faulty plugin recorded."""
        path = self.directory / "ends"
        return path.read_text().splitlines() if path.exists() else []


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a run without times and rates."""
    lines = (directory / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("timing", "perf/"))}
        for line in lines
    ]


def _fit(directory: Path, rank: int, arguments: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Run the command in this process, with its output in files."""
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(directory)
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(directory / f"rank{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    sys.argv = ["hooktrainer", "fit", *arguments]
    sys.exit(main())
