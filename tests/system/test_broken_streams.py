"""Streams and file descriptors that user code replaces or closes neither end a run nor change its exit code."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from helpers.subprocess_runs import FIT, SubprocessRun, config

LIMIT_S = 20.0
BREAKS = """
import io, os, signal, sys
import attrs
from hooktrainer import Plugin, Priority, on
from hooktrainer._util import signals
from hooktrainer.events import FitEnd, StepEnd

class Broken(io.StringIO):
    def write(self, text): raise RuntimeError("broken write")
    def flush(self): raise RuntimeError("broken flush")

class Empty: ...

class Exits(io.StringIO):
    def flush(self): raise SystemExit(9)

ACTS = {"broken": Broken, "empty": Empty, "none": lambda: None, "exits": Exits}

@attrs.define(kw_only=True)
class Breaks(Plugin):
    stream: str = ""
    act: str = ""
    at: str = "step"

    @on(StepEnd, priority=Priority.EVALUATE)
    def step(self, event: StepEnd) -> None:
        if event.step == 1 and self.at == "step":
            self.break_it()

    @on(FitEnd, priority=Priority.CLEANUP + 99)
    def end(self, event: FitEnd) -> None:
        if self.at == "fit_end":
            self.break_it()

    def break_it(self):
        if self.stream:
            setattr(sys, self.stream, ACTS[self.act]())
        elif self.act == "closerange":
            os.closerange(3, 1000)
        elif self.act == "reused":
            os.closerange(3, 1000)
            for _ in range(40):
                os.open("mine", os.O_RDWR | os.O_CREAT, 0o600)
        elif self.act == "full":
            os.set_blocking(signals._watch._write, False)
            try:
                while True:
                    os.write(signals._watch._write, bytes(4096))
            except BlockingIOError:
                pass
        elif self.act == "wakeup":
            signal.set_wakeup_fd(-1)
"""


def fit(directory: Path, *overrides: str, **options: object) -> SubprocessRun:
    (directory / "breaks.py").write_text(BREAKS)
    plugin = ", ".join(f"{name}: {value}" for name, value in options.items())
    text = config(plugins=[f"{{use: 'breaks.py:Breaks', {plugin}}}"]).replace("[console, jsonl]", "[jsonl]")
    (directory / "run.yaml").write_text(text)
    return SubprocessRun(directory, *FIT, "run.yaml", *overrides)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["step", "fit_end"])
@pytest.mark.parametrize("act", ["broken", "empty", "none", "exits"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_raises_does_not_change_the_exit_code(stream: str, act: str, at: str, tmp_path: Path) -> None:
    run = fit(tmp_path, "trainer.total_steps=3", stream=stream, act=act, at=at)

    assert run.ended() == 0, run.err
    assert "Traceback" not in run.err
    assert run.rows() == [1, 2, 3]
    assert run.ends == ["completed 3 all 3 steps are done"]


@pytest.mark.slow
@pytest.mark.parametrize("act", ["broken", "empty"])
def test_a_signal_ends_a_run_whose_streams_raise(act: str, tmp_path: Path) -> None:
    run = fit(tmp_path, stream="stderr", act=act)
    while not list(tmp_path.glob("runs/*/metrics.jsonl")) or len(run.rows()) < 2:
        time.sleep(0.01)
    run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert run.ends[0].startswith("interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("act", ["closerange", "reused", "full", "wakeup"])
@pytest.mark.parametrize("at", ["step", "fit_end"])
def test_file_descriptors_that_user_code_closes_or_fills_do_not_fail_the_run(act: str, at: str, tmp_path: Path) -> None:
    run = fit(tmp_path, "trainer.total_steps=3", act=act, at=at)
    since = time.monotonic()

    assert run.ended() == 0, run.err
    assert time.monotonic() - since < LIMIT_S
    assert run.rows() == [1, 2, 3]
    if act == "reused":
        assert (tmp_path / "mine").read_bytes() == b""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["closerange", "full", "wakeup"])
def test_a_signal_still_interrupts_a_handler_that_hangs_after_that(act: str, tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    (tmp_path / "run.yaml").write_text(config(plugins=[f"{{use: 'breaks.py:Breaks', act: {act}}}"], at="save", step=2))
    run = SubprocessRun(tmp_path, *FIT, "run.yaml")
    run.until("AT save")
    since = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - since < LIMIT_S
    assert run.ends == ["interrupted 2 SIGTERM"]
    assert "Faulty._reach" in run.err
