"""Runs that are killed by SIGKILL at random moments, also inside a save, and resumed until they are done.

    python tests/helpers/kills.py --modes inline-drop thread-wait process-requeue --runs 200

Each attempt is a new process, forked from one that has imported all modules and started no thread. Half of the kills
are at a random time, half at a random file operation of the thread that saves. Prints one line of JSON per mode.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch

from hooktrainer import build_trainer, load_config
from hooktrainer.cli import main
from hooktrainer.learner import policy_gradient
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import Group
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.sort_digits import SortDigits

ENGINES = {
    "inline": "{use: inline, n: 2, max_response_length: 4}",
    "thread": "{use: thread, workers: 2, n: 2, max_response_length: 10, slots: 2}",
    "process": "{use: process, workers: 2, n: 2, max_response_length: 10, slots: 2}",
}
STRATEGIES = ("drop", "requeue", "wait", "pace")
MODES = tuple(f"{engine}-{strategy}" for engine in ENGINES for strategy in STRATEGIES)
CONFIG = """
task: {use: sort_digits, digits: 3, size: 22}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: ROLLOUT
optim: {lr: 1e-2}
trainer: {total_epochs: 2, train_batch_size: 6, ppo_mini_batch_size: 3, parameter_sync_step: 2, num_warmup_batches: 2}
run: {resume: auto}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: staleness, max_off_policy_threshold: 2, max_off_policy_strategy: STRATEGY}
  - {use: validation, every: 3, size: 4}
  - {use: log_after_collect, sinks: [jsonl]}
  - samples
  - {use: checkpoint, every: 2, keep_last: 2, keep_best: val/score/mean, allow_fresh: true}
"""
STEPS = 8  # 44 prompts, 6 a step
MOST_KILLS = 6
PATIENCE_S = 120


class RecordingLearner(policy_gradient.PolicyGradientLearner):
    """Records the prompts that it was trained on, in its state."""

    trained: list[str]

    def update(self, groups: Sequence[Group]) -> Any:
        self.trained = [*getattr(self, "trained", []), *(group.prompt.text for group in groups)]
        return super().update(groups)

    def state_dict(self) -> Any:
        return {**super().state_dict(), "trained": getattr(self, "trained", [])}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.trained = list(state["trained"])


def kill_at(number: int) -> None:
    """Kill this process before the n-th file operation of the thread that saves."""
    count = 0

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if threading.current_thread().name == "checkpoint-writer":
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "rmdir", "unlink"):
        setattr(os, name, wrapped(getattr(os, name)))
    for module in (safetensors.torch, safetensors.numpy):
        module.save_file = wrapped(module.save_file)
    builtins.open = wrapped(builtins.open)


def attempt(folder: Path, mode: str, operation: int | None, after_s: float | None) -> int | None:
    """Run one process; return its exit code, or None if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()  # marks the processes that it starts
            os.chdir(folder)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            policy_gradient.PolicyGradientLearner = RecordingLearner  # type: ignore[misc]
            if operation is not None:
                kill_at(operation)
            code = main(["fit", "run.yaml"])
            sys.stdout.flush()
            os._exit(code)
        except BaseException:  # noqa: BLE001 (the parent reads it in the log)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(99)
    deadline = time.monotonic() + (PATIENCE_S if after_s is None else after_s)
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
        if after_s is None:
            raise AssertionError(f"{mode}: not done after {PATIENCE_S} s: {folder}")
    check_nothing_is_left(child)
    return None if os.WIFSIGNALED(ended[1]) else os.waitstatus_to_exitcode(ended[1])


def of_session(session: int) -> list[str]:
    """The live processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has ended
            continue
        state, _, _, of = text.rpartition(")")[2].split()[:4]
        if int(of) == session and state != "Z":
            found.append(text)
    return found


def check_nothing_is_left(session: int) -> None:
    """Wait for the processes of an attempt to end; fail if one stays, or a file of torch in shared memory."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, left
    named = list(Path("/dev/shm").glob(f"torch_{session}_*"))
    assert not named, named


def prepared(root: Path, name: str, mode: str) -> Path:
    folder = root / name
    folder.mkdir()
    engine, strategy = mode.split("-")
    text = CONFIG.replace("ROLLOUT", ENGINES[engine]).replace("STRATEGY", strategy)
    if strategy == "pace":  # it dispatches ahead by a budget of its own
        text = text.replace("num_warmup_batches: 2", "num_warmup_batches: 0")
    (folder / "run.yaml").write_text(text)
    return folder


def rows(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    lines = (folder / "runs" / "run" / f"{name}.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("timing", "perf/"))}
        for line in lines
    ]


def check(folder: Path, mode: str, whole: Path | None) -> None:
    """Compare with the uninterrupted run, and with the data. Only `drop` loses prompts, those that it counts."""
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(1, len(found) + 1)), [row["step"] for row in found]
    assert found[-1]["ledger/imbalance"] == 0
    chosen = [(line["step"], line["kind"], rule) for line in rows(folder, "samples") for rule in line["chosen"]]
    best = [step for step, kind, rule in chosen if (kind, rule) == ("trained", "best")]
    assert best == list(range(1, len(found) + 1)), best
    assert len(set(chosen)) == len(chosen)
    task = SortDigits(digits=3, size=22)
    data = [p.text for p in TaskPrompts(task, CharTokenizer(task.alphabet), seed=0, total_epochs=2).take(44)]
    last = folder / "runs" / "run" / "checkpoints" / f"step_{len(found):08d}"
    trained = json.loads((last / "state.json").read_text())["parts"]["learner"]["state"]["trained"]
    twice, missing = Counter(trained) - Counter(data), Counter(data) - Counter(trained)
    total = {name.removeprefix("ledger/groups/"): value for name, value in found[-1].items()}
    dropped = {name: value for name, value in total.items() if name.startswith("dropped/")}
    lost = dropped.get("dropped/stale", 0) if mode.endswith("-drop") else 0
    assert not twice, twice
    assert missing.total() == lost, (missing, dropped)
    assert dropped.keys() <= {"dropped/stale", "dropped/restart"}, dropped
    assert total["trained"] == len(trained)
    assert total["outstanding"] == 0
    assert total["dispatched"] == len(trained) + sum(dropped.values())
    if whole is not None:
        assert len(found) == STEPS
        assert found == rows(whole)
        assert rows(folder, "samples") == rows(whole, "samples")
        kept, expected = (
            safetensors.torch.load_file(place / "tensors.safetensors")
            for place in (last, whole / "runs" / "run" / "checkpoints" / last.name)
        )
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[name], expected[name]) for name in kept)


def warm_up(folder: Path) -> None:
    """Import the modules of a run once. Start no thread, so that this process can be forked."""
    import torch._dynamo  # noqa: F401 (by the first step of an optimizer)

    os.chdir(folder)
    trainer = build_trainer(load_config("run.yaml"))
    trainer.ports.engine.close()
    trainer._at_end[0]()
    shutil.rmtree(folder / "runs")
    assert threading.active_count() == 1


def broken_run(folder: Path, mode: str, rng: random.Random, length_s: float) -> Counter[str]:
    """Kill and resume a run until it is done; count the events of its logs."""
    counts: Counter[str] = Counter()
    for kill in range(MOST_KILLS + 1):
        operation = after_s = None
        if kill < MOST_KILLS and (kill == 0 or rng.random() < 0.5):
            if rng.random() < 0.5:
                operation = rng.randrange(1, 300)
            else:
                after_s = rng.uniform(0, length_s)
        counts["attempts"] += 1
        code = attempt(folder, mode, operation, after_s)
        if code is not None:
            assert code == 0, (folder / "log").read_text()
            break
        counts["killed in a save" if operation is not None else "killed at a time"] += 1
    log, last = (folder / "log").read_text(), rows(folder)[-1]
    counts["resumed past an incomplete checkpoint"] += log.count("is incomplete:")
    counts["started a new run over an incomplete checkpoint"] += log.count("starting a new run:")
    counts["groups dropped as stale"] += int(last.get("ledger/groups/dropped/stale", 0))
    counts["groups dropped by a restart"] += int(last.get("ledger/groups/dropped/restart", 0))
    return counts


def measure(mode: str, runs: int, seed: int, root: Path) -> dict[str, Any]:
    """Interrupt this many runs, each at least once, and check each of them."""
    rng = random.Random(f"{mode} {seed}")
    whole = prepared(root, "whole", mode)
    warm_up(whole)
    started = time.monotonic()
    assert attempt(whole, mode, None, None) == 0, (whole / "log").read_text()
    length_s = time.monotonic() - started
    check(whole, mode, None)
    counts: Counter[str] = Counter()
    done = 0
    while done < runs:
        folder = prepared(root, "run", mode)
        found = broken_run(folder, mode, rng, length_s)
        check(folder, mode, whole if mode.startswith("inline") else None)
        shutil.rmtree(folder)
        if found["attempts"] > 1:  # one that was done before it could be killed does not count
            counts += found
            done += 1
    return {"mode": mode, "runs": runs, **counts, "seconds": round(time.monotonic() - started, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for mode in arguments.modes:
            root = Path(place, mode)
            root.mkdir()
            print(json.dumps(measure(mode, arguments.runs, arguments.seed, root)), flush=True)
            os.chdir(place)
            shutil.rmtree(root)
        left = list(Path(place).iterdir())
        assert not left, left
