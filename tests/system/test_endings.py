"""Ends of runs in separate processes: exit codes, output, and no remaining threads, processes or files."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import attrs
import pytest
import yaml

from helpers import rollouts
from helpers.subprocess_runs import CONFIG, FIT, PROCESSES, SubprocessRun, config
from hooktrainer import Plugin, build_trainer, on
from hooktrainer.errors import RolloutError
from hooktrainer.events import FitEnd
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.sort_digits import SortDigits

LIMIT_S = 5


def fit(directory: Path, text: str, *overrides: str) -> SubprocessRun:
    (directory / "run.yaml").write_text(text)
    return SubprocessRun(directory, *FIT, "run.yaml", *overrides)


ENDINGS = {
    "completed": ({}, ["trainer.total_steps=2"], "step ", 0, "completed 2 all 2 steps are done"),
    "data": ({}, ["task.size=8", "trainer.total_steps=null"], "step ", 0, "completed 2 the data has ended"),
    "stopped": ({"at": "save", "act": "stop"}, [], "AT", 0, "stopped 2 that is enough"),
    "raises": ({"at": "iteration_end", "act": "raise"}, [], "AT", 1, "failed 1 ValueError: boom"),
    "leaves": ({"at": "iteration_end", "act": "exit"}, [], "AT", 3, "interrupted 1 SystemExit: 3"),
    "late": ({"at": "fit_end", "act": "raise"}, ["trainer.total_steps=2"], "AT", 1, "completed 2 all 2 steps are done"),
    "signal": ({"at": "validation"}, [], "AT", 143, "interrupted 2 SIGTERM"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "engine"),
    [(ending, engine) for ending in ENDINGS for engine in ("thread", "process")],
)
def test_no_process_or_file_remains_after_a_run(ending: str, engine: str, tmp_path: Path) -> None:
    odd, overrides, marker, code, said = ENDINGS[ending]
    run = fit(tmp_path, config(text=CONFIG if engine == "thread" else PROCESSES, **odd), *overrides)
    run.until(marker, times=2 if marker == "step " else 1)
    since = run.send(signal.SIGTERM) if ending == "signal" else time.monotonic()

    assert run.ended() == code, run.err
    assert time.monotonic() - since < LIMIT_S
    assert run.ends == [said]
    assert run.left() == []


FULL = """
from queue import Queue
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

QUEUE = Queue(maxsize=16)

@attrs.frozen(kw_only=True)
class Full(SortDigits):
    def grade(self, truth, answer):
        QUEUE.put(answer)
        return super().grade(truth, answer)
"""


@pytest.mark.slow
def test_process_exits_while_a_rollout_thread_hangs_on_a_full_queue(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    # Two steps of four groups with two answers each fill the queue; groups dispatched ahead hang.
    more = ["trainer.num_warmup_batches=1", "rollout.batching=group", "trainer.total_steps=2"]
    run = fit(tmp_path, config(), "task.use=full.py:Full", *more)
    run.until("completed")
    since = time.monotonic()

    assert run.ended() == 0
    assert time.monotonic() - since < LIMIT_S
    assert re.search(r"reward-0 (and \d+ more threads? )?did not return within 1.5 s and (is|are) abandoned", run.err)
    assert run.ends == ["completed 2 all 2 steps are done"]
    assert run.left() == []


@pytest.mark.slow
def test_error_ends_the_run_while_a_rollout_thread_hangs_on_a_full_queue(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    more = ["trainer.num_warmup_batches=1", "rollout.batching=group"]
    run = fit(tmp_path, config(at="iteration_end", act="raise"), "task.use=full.py:Full", *more)
    run.until("AT iteration_end")
    since = time.monotonic()

    assert run.ended() == 1
    assert time.monotonic() - since < LIMIT_S
    assert "ValueError: boom" in run.err
    assert run.ends == ["failed 1 ValueError: boom"]
    assert run.left() == []


SLOW_END = """
import sys, time
import attrs
from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, IterationEnd

@attrs.define(kw_only=True)
class SlowEnd(Plugin):
    at: str = "step"

    @on(IterationEnd)
    def step(self, event: IterationEnd) -> None:
        if event.step == 2 and self.at == "step":
            raise ValueError("the real reason")

    @on(FitEnd, priority=Priority.SAVE - 1)
    def first(self, event: FitEnd) -> None:
        if self.at == "fit_end":
            raise ValueError("the real reason")

    @on(FitEnd, priority=Priority.SAVE)
    def end(self, event: FitEnd) -> None:
        sys.stdout.write("AT end\\n")
        sys.stdout.flush()
        time.sleep(1)

    @on(FitEnd, priority=Priority.SAVE + 1)
    def late(self, event: FitEnd) -> None:
        if self.at == "late":
            raise ValueError("the real reason")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("at", ["step", "fit_end"])
def test_signal_during_the_end_of_a_failed_run_does_not_hide_the_error(
    at: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "slow_end.py").write_text(SLOW_END)
    run = fit(tmp_path, config(plugins=[f"{{use: 'slow_end.py:SlowEnd', at: {at}}}"]), "trainer.total_steps=3")
    run.until("AT end")
    run.send(number)

    assert run.ended() == 1
    assert "ValueError: the real reason" in run.err
    assert "terminated" not in run.err
    assert "interrupted" not in run.err
    assert run.ends == ["failed 1 ValueError: the real reason" if at == "step" else "completed 3 all 3 steps are done"]


@pytest.mark.slow
def test_error_in_fit_end_after_a_signal_is_shown(tmp_path: Path) -> None:
    (tmp_path / "slow_end.py").write_text(SLOW_END)
    run = fit(tmp_path, config(plugins=["{use: 'slow_end.py:SlowEnd', at: late}"]), "trainer.total_steps=3")
    run.until("AT end")
    run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert "at the end of the run there was an error: ValueError: the real reason" in run.err
    assert run.err.endswith("terminated\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "last", "named"),
    [
        ("child", "sending SIGKILL", "left running: process mine (pid "),
        ("thread", "the process exits without it", "left running: thread mine, which does not end"),
    ],
)
def test_threads_and_processes_left_by_a_plugin_are_ended_and_named(
    act: str, last: str, named: str, tmp_path: Path
) -> None:
    run = fit(tmp_path, config(at="step_start", act=act), "trainer.total_steps=2")
    run.until("completed")
    since = time.monotonic()

    assert run.ended() == 0, run.err
    assert time.monotonic() - since < LIMIT_S
    assert named in run.err
    assert run.err.endswith(f"{last}\n")
    assert run.left() == []


THIRD = """
import itertools, os
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

CALLS = itertools.count(1)

@attrs.frozen(kw_only=True)
class Third(SortDigits):
    def grade(self, truth, answer):
        if next(CALLS) == 3:
            print("AT third", flush=True)
            ACT
        return super().grade(truth, answer)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "act", "said"),
    [
        (CONFIG, "raise ValueError('boom')", "ValueError: boom"),
        (PROCESSES, "raise ValueError('boom')", "ValueError: boom"),
        (PROCESSES.replace("workers: 2", "max_restarts: 0"), "os._exit(0)", "returned early, with exit code 0"),
    ],
    ids=["thread raises", "process raises", "process returns early"],
)
def test_failed_worker_ends_the_run_within_two_seconds(text: str, act: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "third.py").write_text(THIRD.replace("ACT", act))
    batch = ("trainer.ppo_mini_batch_size=4", "trainer.parameter_sync_step=1")
    run = fit(tmp_path, config(text=text), "task.use=third.py:Third", *batch)
    run.until("AT third")
    since = time.monotonic()

    assert run.ended() == 1
    assert time.monotonic() - since < 2
    assert said in run.err
    (end,) = run.ends
    assert end.startswith("failed 0 RolloutError: ")
    assert run.left() == []


@attrs.define(kw_only=True)
class Ends(Plugin):
    """Records every `fit_end`."""

    seen: list[tuple[str, int, str]] = attrs.field(factory=list)

    @on(FitEnd)
    def end(self, event: FitEnd) -> None:
        self.seen.append((event.status, event.step, event.reason))


def boom(*_: object) -> None:
    raise ValueError("boom")


FAULTS = {
    "raises": ("score", boom, ValueError("boom")),
    "returns early": ("trajectories", lambda *_: [], RolloutError("the engine generated 0 answers instead of 2 ")),
    "returns None": ("trajectories", lambda *_: None, RolloutError("the engine generated nothing instead of 2 ")),
    "scores None": ("grade", lambda *_: None, RolloutError("SortDigits.score returned None for the answer ")),
    "puts None": ("finish", None, RolloutError("the engine handed in None instead of answers")),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["inline", "thread"])
@pytest.mark.parametrize("fault", FAULTS)
def test_worker_that_fails_in_its_third_rollout_ends_fit_within_two_seconds_and_is_named(
    fault: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, instead, cause = FAULTS[fault]
    mapping = yaml.safe_load(CONFIG) | {
        "run": {"dir": str(tmp_path)},
        "trainer": {"total_steps": 50, "train_batch_size": 4, "ppo_mini_batch_size": 4},
        "plugins": ["metric_aggregation", "weight_sync", {"use": f"{__file__}:Ends", "name": "ends"}],
    }
    mapping["rollout"]["use"] = engine
    trainer = build_trainer(config_from_mapping(mapping))
    (ends,) = [entry.plugin for entry in trainer.bus.plan.plugins if entry.name == "ends"]
    buffer = trainer.ports.buffer
    owner = {
        "score": SortDigits,
        "grade": SortDigits,
        "trajectories": trainer.ports.engine._generator,
        "finish": buffer,
    }[method]
    real, calls, since = getattr(owner, method), itertools.count(1), list[float]()

    def third(*arguments: object) -> object:
        if next(calls) != 3:
            return real(*arguments)
        since.append(time.monotonic())
        return real(arguments[0], None) if instead is None else instead(*arguments)

    monkeypatch.setattr(owner, method, third)
    with pytest.raises(RolloutError, match=r"^group \d \(.*\) could not be generated \(error\)") as caught:
        trainer.fit()

    assert time.monotonic() - since[0] < 2
    found = caught.value.__cause__
    assert type(found) is type(cause)
    assert str(found).startswith(str(cause))
    assert ends.seen == [("failed", 0, f"RolloutError: {caught.value}")]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


@pytest.mark.slow
def test_run_continues_after_its_standard_output_is_closed(tmp_path: Path) -> None:
    run = fit(tmp_path, config(), "trainer.total_steps=30")
    run.until("step")
    run.process.stdout.close()
    with run.process.stderr as stream:
        said = stream.read()

    assert run.process.wait() == 0
    assert run.rows() == list(range(1, 31))
    assert said == "standard output cannot be written (Broken pipe): no more lines are shown, the run continues\n"


@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_standard_streams_are_closed(tmp_path: Path) -> None:
    run = fit(tmp_path, config(at="save", step=5))
    run.until("step")
    run.process.stdout.close()
    run.process.stderr.readline()
    run.process.stderr.close()
    while not run.ends and len(run.rows()) < 5:
        time.sleep(0.01)
    run.send(signal.SIGINT)

    assert run.process.wait() == 130
    assert run.ends == ["interrupted 5 SIGINT"]


@pytest.mark.parametrize("command", ["plan", pytest.param("fit", marks=pytest.mark.slow)])
def test_ascii_terminal_gets_ascii_output(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config())
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    done = subprocess.run(
        [sys.executable, "-m", "hooktrainer", command, "run.yaml", "trainer.total_steps=1", "run.name=größe"],
        capture_output=True, env=env, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert (b"adds metrics.row | makes weights.published" if command == "plan" else b"runs/gr??e") in done.stdout


@pytest.mark.slow
def test_signal_ends_a_run_inside_a_handler_and_the_outer_run(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(config(at="validation"))
    run = fit(tmp_path, config(at="before_sync", act="fit"))
    run.until("AT validation")
    run.send(signal.SIGINT)

    assert run.ended() == 130
    assert run.ends == ["interrupted 2 SIGINT", "interrupted 1 SIGINT"]
    assert run.left() == []


@pytest.mark.slow
def test_second_ctrl_c_leaves_both_nested_runs(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(config(at="fit_end"))
    run = fit(tmp_path, config(at="before_sync", act="fit"))
    run.until("AT before_sync")
    run.until("step")
    run.send(signal.SIGINT)
    run.until("AT fit_end")
    since = run.send(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - since < 1
    assert run.ends == ["interrupted " + run.ends[0].split()[1] + " SIGINT"]


@pytest.fixture
def make() -> Callable[[], object]:
    engines = []

    def build() -> object:
        options = ProcessOptions(workers=1, max_restarts=0, n=1, max_response_length=rollouts.LENGTH)
        engines.append(options.build(rollouts.generator_config()))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def test_error_of_a_worker_killed_during_startup_does_not_blame_the_script(make: Callable[[], object]) -> None:
    engine = make()
    rollouts.publish(engine, 0)
    queue = rollouts.Queue(rollouts.groups(1))
    engine.start(queue)
    os.kill(active_children()[0].pid, signal.SIGKILL)
    queue.wait_until(lambda: queue.closed)

    with pytest.raises(RolloutError, match=r"killed by SIGKILL after 0 restarts\. If no user killed it, the system"):
        engine.pump()


AT_EXIT = """
import atexit, ctypes, multiprocessing, sys, threading, time
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import FitStart

KEPT = []

@attrs.define(kw_only=True)
class AtExit(Plugin):
    act: str

    @on(FitStart)
    def start(self, event: FitStart) -> None:
        if self.act == "sleeps":
            atexit.register(time.sleep, 600)
        elif self.act == "queue":
            KEPT.append(multiprocessing.Queue())
            KEPT[0].put(bytes(10_000_000))  # more than its pipe takes
        elif self.act == "catches":
            atexit.register(self.catch_all)
        elif self.act == "short":
            atexit.register(time.sleep, 1.5)

    def catch_all(self):
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
"""
AT_EXIT_PLACES = {"sleeps": "", "queue": "Queue._finalize_join", "catches": "AtExit.catch_all"}
LIMITED = "did not return within 5 s; the process exits without it"


def at_exit(directory: Path, exit_act: str, *overrides: str, **odd: object) -> SubprocessRun:
    (directory / "at_exit.py").write_text(AT_EXIT)
    return fit(directory, config(plugins=[f"{{use: 'at_exit.py:AtExit', act: {exit_act}}}"], **odd), *overrides)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["completed", "raises", "SIGTERM", "SIGINT"])
@pytest.mark.parametrize("act", AT_EXIT_PLACES)
def test_the_exit_of_the_process_is_limited_and_the_place_is_named(act: str, ending: str, tmp_path: Path) -> None:
    odd = {"completed": {}, "raises": {"at": "save", "act": "raise"}}.get(ending, {"at": "validation"})
    run = at_exit(tmp_path, act, *(["trainer.total_steps=2"] if ending == "completed" else []), **odd)
    run.until("completed" if ending == "completed" else "AT")
    since = time.monotonic()
    if ending.startswith("SIG"):
        run.send(getattr(signal, ending))

    assert run.ended() == {"completed": 0, "raises": 1, "SIGTERM": 143, "SIGINT": 130}[ending], run.err
    assert time.monotonic() - since < 30
    assert LIMITED in run.err
    assert AT_EXIT_PLACES[act] in run.err
    assert run.left() == []


@pytest.mark.slow
def test_an_exit_handler_that_returns_is_not_cut_off(tmp_path: Path) -> None:
    run = at_exit(tmp_path, "short", "trainer.total_steps=2")

    assert run.ended() == 0
    assert run.err == ""


AT_EXIT_SCRIPT = """
import sys, time
from hooktrainer import build_trainer, load_config

if __name__ == "__main__":
    try:
        build_trainer(load_config("run.yaml", overrides=sys.argv[2:])).fit()
    except KeyboardInterrupt:
        if sys.argv[1] != "catch":
            raise
    print("AT exit", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("handling", ["raise", "catch"])
def test_the_exit_of_a_script_is_limited_after_a_signal(handling: str, tmp_path: Path) -> None:
    (tmp_path / "at_exit.py").write_text(AT_EXIT)
    (tmp_path / "script.py").write_text(AT_EXIT_SCRIPT)
    (tmp_path / "run.yaml").write_text(config(plugins=["{use: 'at_exit.py:AtExit', act: sleeps}"], at="validation"))
    run = SubprocessRun(tmp_path, sys.executable, "-u", "script.py", handling)
    run.until("AT validation")
    run.send(signal.SIGINT)

    assert run.ended() == 130
    assert LIMITED in run.err


@pytest.mark.slow
def test_the_exit_of_a_script_is_its_own_without_a_signal(tmp_path: Path) -> None:
    (tmp_path / "at_exit.py").write_text(AT_EXIT.replace("1.5", "7"))
    (tmp_path / "script.py").write_text(AT_EXIT_SCRIPT)
    (tmp_path / "run.yaml").write_text(config(plugins=["{use: 'at_exit.py:AtExit', act: short}"]))
    run = SubprocessRun(tmp_path, sys.executable, "-u", "script.py", "raise", "trainer.total_steps=2")
    run.until("AT exit")
    since = time.monotonic()

    assert run.ended() == 0
    assert time.monotonic() - since > 6
    assert LIMITED not in run.err


EXITING_SINK = """
import sys
import attrs

@attrs.define
class Sink:
    def open(self, run): ...
    def close(self, status): ...
    def write(self, step, row):
        sys.exit(4)
"""


@pytest.mark.slow
def test_a_sink_that_calls_sys_exit_is_shown_once_and_other_sinks_are_written(tmp_path: Path) -> None:
    (tmp_path / "exiting.py").write_text(EXITING_SINK)
    run = fit(tmp_path, config().replace("[console, jsonl]", "['exiting.py:Sink', jsonl]"))

    assert run.ended() == 4
    assert run.err.count("Traceback") == 1
    assert "the run was ended by SystemExit(4)" in run.err
    assert run.rows() == [1]


def test_the_exit_code_is_kept_if_python_takes_long_to_end_its_own_parts() -> None:
    script = """
import os, time
from hooktrainer._util import exit_limit
exit_limit.EXIT_S = 0.2

class Slow:
    def __del__(self, now=time.monotonic, write=os.write):
        end = now() + 0.6
        while now() < end:
            pass
        write(1, b"ended")

import sys
sys.modules["kept"] = Slow()  # deleted after the exit handlers
exit_limit.limit_exit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended")
