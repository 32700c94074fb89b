"""The table of single faults in hooktrainer/run/README.md: each fault is caused in a real run."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

import hooktrainer
from helpers.subprocess_runs import CONFIG, FIT, PROCESSES, SubprocessRun, config

README = Path(hooktrainer.__file__).parent / "run" / "README.md"
SAVING = "{use: checkpoint, every: 1, patience_s: 2}"
OWN_LIMIT_S = 2.0
"""The timeout, or `patience_s`, that the rows with a limit of their own are run with."""
BUSY_S = 20.0
"""Seconds that a busy machine may add. A fault that hangs takes longer than this and any limit."""

TASK = """
import os, sys, time
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

FORKED = []

def announce():
    sys.stdout.write("AT fault\\n")
    sys.stdout.flush()

def act(what):
    announce()
    if what == "raise":
        raise ValueError("boom")
    while what == "hang":
        time.sleep(60)

@attrs.frozen(kw_only=True)
class Task(SortDigits):
    at: str
    act: str

    def grade(self, truth, answer):
        if self.at == "fork" and not FORKED:
            FORKED.append(True)
            announce()
            if not os.fork():
                os.closerange(0, 3)
                time.sleep(45)
                os._exit(0)
        if self.at == "score":
            return act(self.act)
        return super().grade(truth, answer)

    def train(self, seed):
        for place, prompt in enumerate(super().train(seed)):
            if place == 9 and self.at == "train":
                act(self.act)
            yield prompt
"""
NATIVE = """
import ctypes, sys
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import IterationEnd

@attrs.define(kw_only=True)
class Native(Plugin):
    @on(IterationEnd)
    def hang(self, event: IterationEnd) -> None:
        sys.stdout.write("AT fault\\n")
        sys.stdout.flush()
        mutex = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
KILLS = """
import os, signal, sys
from multiprocessing import active_children
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import StepStart

@attrs.define(kw_only=True)
class Kills(Plugin):
    @on(StepStart)
    def kill(self, event: StepStart) -> None:
        if event.step == 3:
            os.kill(active_children()[0].pid, signal.SIGKILL)
            sys.stdout.write("AT fault\\n")
            sys.stdout.flush()
"""
DISK = """
import os, sys, threading
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import FitStart

@attrs.define(kw_only=True)
class Disk(Plugin):
    hangs: bool

    @on(FitStart)
    def break_it(self, event: FitStart) -> None:
        real = os.fsync

        def fsync(file):
            if threading.current_thread().name != "checkpoint-writer":
                return real(file)
            sys.stdout.write("AT fault\\n")
            sys.stdout.flush()
            if self.hangs:
                threading.Event().wait()
            raise OSError(28, "No space left on device")

        os.fsync = fsync
"""
RAISING_SINK = """
import sys
import attrs

@attrs.define
class Sink:
    critical: bool = False

    def open(self, run): ...
    def close(self, status): ...
    def write(self, step, row):
        sys.stdout.write("AT fault\\n")
        sys.stdout.flush()
        raise ValueError("boom")
"""


@attrs.frozen(kw_only=True)
class Case:
    """How a fault is caused."""

    text: str
    overrides: tuple[str, ...] = ()
    marker: str = "AT"
    before: Callable[[SubprocessRun], None] | None = None
    """Causes the fault once the marker was printed."""
    signals: tuple[signal.Signals, ...] = ()
    named: str
    """Text of standard error, or `SILENT`."""


SILENT = ""
"""Nothing is written to standard error."""


def faulty(at: str, act: str, **more: object) -> Case:
    plugins = [SAVING, *more.pop("plugins", ())]
    return Case(text=config(plugins=plugins, at=at, act=act), **more)


def task(at: str, act: str, engine: str = "thread", *overrides: str, named: str = "task.py") -> Case:
    text = CONFIG.replace("use: thread", f"use: {engine}")
    odd = ("task.use=task.py:Task", f"task.at={at}", f"task.act={act}", *overrides)
    return Case(text=config(text=text, plugins=[SAVING]), overrides=odd, named=named)


def sink(name: str, *overrides: str, critical: bool = False, named: str) -> Case:
    item = f"{{use: '{name}', critical: true}}" if critical else f"'{name}'"
    text = config(plugins=[SAVING]).replace("sinks: [console, jsonl]", f"sinks: [{item}, console, jsonl]")
    return Case(text=text, overrides=overrides, named=named)


def running(*, text: str = CONFIG, **more: object) -> Case:
    return Case(text=config(text=text, plugins=[SAVING]), marker="step ", **more)


def remove(run: SubprocessRun) -> None:
    removed = (run.directory / "runs/run").rename(run.directory / "removed")  # the run cannot add files meanwhile
    shutil.rmtree(removed)


def fill(run: SubprocessRun) -> None:
    full = run.directory / "full"
    full.symlink_to("/dev/full")
    full.replace(run.directory / "runs/run/metrics.jsonl")


TEN = "trainer.total_steps=10"
CASES = {
    "`score` raises": task("score", "raise", named="ValueError: boom"),
    "`score` returns `None`": task("score", "nothing", named="score returned None"),
    "`score` never returns in a thread": task("score", "hang"),
    "`score` never returns in a worker process": task("score", "hang", "process"),
    "`score` never returns, with `replay.sample_timeout_s`": task(
        "score", "hang", "thread", "replay.sample_timeout_s=2", named="Task.grade"
    ),
    "`score` never returns, with `reward.timeout_s` and `replay.max_lost_groups: 0`": task(
        "score", "hang", "thread", "reward.timeout_s=2", "replay.max_lost_groups=0", named="Task.grade"
    ),
    "the prompt source raises": task("train", "raise", named="ValueError: boom"),
    "the prompt source never returns": task("train", "hang"),
    "a handler raises": faulty("iteration_end", "raise", named="raised by plugin 'faulty'"),
    "a handler never returns": faulty("validation", "sleep", named="Faulty._reach"),
    "a handler of `fit_end` raises": faulty("fit_end", "raise", overrides=(TEN,), named="Faulty.fit_end"),
    "a handler of `fit_end` never returns": faulty("fit_end", "sleep", overrides=(TEN,), named="faulty.fit_end"),
    "a handler calls `sys.exit`": faulty("iteration_end", "exit", named="SystemExit(3)"),
    "a handler hangs in a native call": Case(text=config(plugins=[SAVING, "native.py:Native"]), named="Native.hang"),
    "a sink raises in `write`": sink("raising_sink.py:Sink", TEN, named="is dropped; the run continues without it"),
    "a critical sink raises in `write`": sink("raising_sink.py:Sink", critical=True, named="ValueError: boom"),
    "a sink never returns from `open`": sink("faulty_sinks:HangsInOpen", named="HangsInOpen.hang"),
    "a sink never returns from `write`": sink("faulty_sinks:Hangs", named="Hangs.hang"),
    "a sink never returns from `close`": sink("faulty_sinks:HangsInClose", TEN, named="HangsInClose.hang"),
    "a thread of a plugin never ends": faulty("step_start", "thread", overrides=(TEN,), named="thread mine"),
    "a process of a plugin never ends": faulty("step_start", "child", overrides=(TEN,), named="process mine"),
    "a worker process is killed": Case(
        text=config(text=PROCESSES, plugins=[SAVING, "kills.py:Kills"]), overrides=(TEN,), named="is restarted"
    ),
    "a worker process is stopped during a sync": Case(
        text=config(text=PROCESSES, plugins=[SAVING, "{use: 'faulty_plugins:StopsWorkers', before: flip}"]),
        named="SIGKILL",
    ),
    "a process that `score` forked outlives its worker": task("fork", "nothing", "process", TEN, named=SILENT),
    "a process that `score` forked outlives its worker, and the run is interrupted": task(
        "fork", "nothing", "process", named="terminated"
    ),
    "a checkpoint cannot be written": Case(
        text=config(plugins=[SAVING, "{use: 'disk.py:Disk', hangs: false}"]), named="the checkpoint of step 1"
    ),
    "the disk hangs while a checkpoint is written": Case(
        text=config(plugins=[SAVING, "{use: 'disk.py:Disk', hangs: true}"]),
        named="the checkpoint of step 1 was abandoned",
    ),
    "the run directory is removed": running(before=remove, named="runs/run"),
    "the run directory is read-only or full": running(before=fill, named="No space left on device"),
    "the reader of standard output leaves": running(
        before=lambda run: run.process.stdout.close(), overrides=(TEN,), named="standard output cannot be written"
    ),
    "Ctrl-C": running(signals=(signal.SIGINT,), named="resume with run.resume=auto"),
    "Ctrl-C twice": faulty(
        "fit_end",
        "sleep",
        overrides=(TEN,),
        signals=(signal.SIGINT, signal.SIGINT),
        named="aborted; writes in progress were not completed",
    ),
    "SIGTERM": running(signals=(signal.SIGTERM,), named="resume with run.resume=auto"),
    "SIGHUP": running(signals=(signal.SIGHUP,), named="resume with run.resume=auto"),
    "SIGKILL": running(signals=(signal.SIGKILL,), named=SILENT),
}


def rows_of_the_table() -> list[tuple[str, str, str]]:
    section = README.read_text(encoding="utf-8").partition("## Faults\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def test_every_fault_of_the_table_is_caused() -> None:
    assert [fault for fault, _, _ in rows_of_the_table()] == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "outcome", "within"), rows_of_the_table(), ids=lambda text: text)
def test_a_single_fault_has_the_outcome_of_the_table(fault: str, outcome: str, within: str, tmp_path: Path) -> None:
    case = CASES[fault]
    for name, text in {
        "task": TASK,
        "native": NATIVE,
        "kills": KILLS,
        "disk": DISK,
        "raising_sink": RAISING_SINK,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "run.yaml").write_text(case.text)
    run = SubprocessRun(tmp_path, *FIT, "run.yaml", *case.overrides)
    run.until(case.marker, times=5 if case.marker == "step " else 1)  # the first steps are saved then
    since = time.monotonic()
    if case.before is not None:
        case.before(run)
    signals = case.signals or ((signal.SIGTERM,) if outcome.startswith("SIGTERM") else ())
    for number in signals:
        run.send(number)
        if number is not signal.SIGKILL and len(signals) > 1:
            run.wait_until_received(number)
    code = ended(run)
    took = time.monotonic() - since

    print(f"{fault}: {outcome}, {took:.1f} s")  # noqa: T201 (the time is a result)
    if within:
        own_limit = OWN_LIMIT_S if " + " in within else 0.0
        assert took < own_limit + float(within.removesuffix(" s").rpartition(" ")[2]) + BUSY_S
    if outcome == "continues":
        assert code == 0, run.err
        assert run.rows() == list(range(1, 11))
    elif outcome.startswith("resumes"):
        assert code == -signal.SIGKILL
        last = run.rows()[-1]
        again = SubprocessRun(tmp_path, *FIT, "run.yaml", "run.resume=auto", f"trainer.total_steps={last + 3}")
        assert again.ended() == 0, again.err
        assert again.rows() == list(range(1, last + 4))
    else:
        assert code == int(outcome.rpartition(" ")[2]), run.err
    assert case.named in run.err if case.named else run.err == SILENT


def ended(run: SubprocessRun) -> int:
    """Wait for the end, also if standard output was closed."""
    if not run.process.stdout.closed:
        return run.ended()
    run.err = run.process.stderr.read()
    return run.process.wait()
