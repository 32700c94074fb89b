"""SIGINT, SIGTERM and SIGHUP, at every place of a run, in real processes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from helpers.subprocess_runs import CONFIG, FAULTY_PLUGINS, FIT, PROCESSES, SubprocessRun, config

GRACE_S = 10
SAVING = "{use: checkpoint, every: 1000}"


def fit(directory: Path, text: str, *overrides: str) -> SubprocessRun:
    (directory / "run.yaml").write_text(text)
    return SubprocessRun(directory, *FIT, "run.yaml", *overrides)


PLACES = {
    "fit_start": 0,
    "step_start": 1,
    "iteration_start": 1,
    "iteration_end": 1,
    "before_sync": 1,
    "after_sync": 2,
    "validation": 2,
    "save": 2,
}
"""Where a run is broken off, in step 2, and the last complete step then."""


@pytest.mark.slow
@pytest.mark.parametrize("place", list(PLACES))
def test_slow_handler_is_interrupted_after_the_grace_time_and_the_last_complete_step_kept(
    place: str, tmp_path: Path
) -> None:
    run = fit(tmp_path, config(plugins=[SAVING], at=place))
    run.until("AT")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < GRACE_S
    assert run.checkpoints() == [f"step_{step:08d}" for step in [PLACES[place]] if step]
    assert run.ends == [f"interrupted {PLACES[place]} SIGTERM"]
    assert run.rows() == list(range(1, PLACES[place] + 1))
    hint = "; resume with run.resume=auto\nreport: hooktrainer report runs/run" if PLACES[place] else ""
    assert run.err.endswith(f"kept in runs/run{hint}\nterminated\n")
    assert (tmp_path / "saved").exists()
    assert run.left() == []


@pytest.mark.slow
def test_signal_ends_a_run_that_waits_for_groups_within_the_grace_time(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(
        "import sys, time\nimport attrs\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n"
        "@attrs.frozen(kw_only=True)\nclass Never(SortDigits):\n    def grade(self, *_):\n"
        "        sys.stdout.write('AT score\\n')\n        sys.stdout.flush()\n        time.sleep(600)\n"
    )
    run = fit(tmp_path, config(), "task.use=never.py:Never")
    run.until("AT score")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < GRACE_S
    assert run.ends == ["interrupted 0 SIGTERM"]
    assert re.search(r"reward-0 (and \d+ more threads? )?did not return within 1.5 s and (is|are) abandoned", run.err)
    assert run.left() == []


@pytest.mark.slow
def test_signal_during_a_wait_for_groups_saves_the_last_complete_step(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(
        "import itertools, sys, threading\nimport attrs\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n"
        "CALLS = itertools.count(1)\n\n"
        "@attrs.frozen(kw_only=True)\nclass Later(SortDigits):\n    def grade(self, truth, answer):\n"
        "        if next(CALLS) > 16:\n            sys.stdout.write('AT score\\n')\n            sys.stdout.flush()\n"
        "            threading.Event().wait()\n        return super().grade(truth, answer)\n"
    )
    # Two steps of four groups with two answers each; nothing more is ever sampled.
    text = config(plugins=[SAVING], at="iteration_start", step=3, act="continue")
    run = fit(tmp_path, text, "task.use=later.py:Later", "rollout.batching=group")
    run.until("AT", times=2)  # step 3 has begun, so the row of step 2 is on disk, and no more groups come
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < GRACE_S
    assert run.checkpoints() == ["step_00000002"]
    assert run.ends == ["interrupted 2 SIGTERM"]
    assert run.left() == []


@pytest.mark.slow
def test_signal_that_another_thread_received_interrupts_a_wait_of_the_main_thread(tmp_path: Path) -> None:
    """The kernel interrupts only the thread that receives a signal, and Python handles it on the main thread."""
    (tmp_path / "later.py").write_text(
        "import signal, sys, threading\nimport attrs\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n"
        "@attrs.frozen(kw_only=True)\nclass Later(SortDigits):\n    def grade(self, truth, answer):\n"
        "        threading.Event().wait(1)  # the main thread waits for groups then\n"
        "        signal.pthread_kill(threading.get_ident(), signal.SIGINT)\n"
        "        threading.Event().wait()\n"
    )
    run = fit(tmp_path, config(), "task.use=later.py:Later")

    assert run.ended() == 130
    assert run.ends == ["interrupted 0 SIGINT"]
    assert "the run was interrupted in GroupBuffer._wait" in run.err


@pytest.mark.parametrize("engine", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_signal_during_training_saves_the_last_complete_step(engine: str, tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=CONFIG if engine == "thread" else PROCESSES, plugins=[SAVING]))
    run.until("step", times=3)
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < GRACE_S
    last = run.rows()[-1]
    assert run.checkpoints() == [f"step_{last:08d}"]
    assert run.ends == [f"interrupted {last} SIGTERM"]
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("before", ["stage", "pause", "flip"])
def test_signal_ends_a_run_whose_worker_is_stopped_during_a_sync(before: str, tmp_path: Path) -> None:
    plugins = [SAVING, f"{{use: 'faulty_plugins:StopsWorkers', before: {before}}}"]
    run = fit(tmp_path, config(text=PROCESSES, plugins=plugins))
    run.until(f"AT {before}")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < GRACE_S
    assert run.checkpoints() == ["step_00000002"]
    assert run.ends == ["interrupted 2 SIGTERM"]
    assert "sending SIGKILL" in run.err
    assert run.left() == []


@pytest.mark.slow
def test_ctrl_c_also_stops_the_following_shell_command(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config(text=SLOW, plugins=[SAVING]))
    line = f"{sys.executable} -u -m hooktrainer fit run.yaml trainer.total_steps=10 && touch done; echo code $?"
    run = SubprocessRun(tmp_path, "sh", "-c", line)
    run.until("step  3/10")
    os.kill(child_of(run.process.pid), signal.SIGINT)

    assert run.ended() == 0  # of echo
    assert run.out[-1] == "code 130"
    assert not (tmp_path / "done").exists()
    assert 3 <= len(run.rows()) < 10
    assert run.checkpoints() == [f"step_{len(run.rows()):08d}"]
    assert run.ends == [f"interrupted {len(run.rows())} SIGINT"]
    assert run.left() == []


SLOW = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 2, max_response_length: 4}
trainer: {total_steps: 100000, train_batch_size: 32, ppo_mini_batch_size: 16, parameter_sync_step: 2}
"""


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_ctrl_c_during_composition_exits_130(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import time\nprint('AT import', flush=True)\ntime.sleep(60)\n")
    run = fit(tmp_path, config(plugins=["'late.py:Late'"]))
    run.until("AT import")
    sent = run.send(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - sent < GRACE_S
    assert run.err == "interrupted\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_during_the_import_of_a_plugin_is_not_reported_as_its_fault(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text("import time\nprint('AT import', flush=True)\ntime.sleep(60)\n")
    run = fit(tmp_path, config(plugins=["'late.py:Late'"]))
    run.until("AT import")
    run.send(number)

    assert run.ended() == 128 + number
    assert run.err == "terminated\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_the_end_of_a_completed_run_sets_the_exit_code_only(
    number: signal.Signals, tmp_path: Path
) -> None:
    run = fit(tmp_path, config(at="fit_end", act="short"), "trainer.total_steps=2")
    run.until("AT fit_end")
    for _ in range(1 if number == signal.SIGINT else 5):
        run.send(number)

    assert run.ended() == 128 + number
    assert run.ends == ["completed 2 all 2 steps are done"]
    assert (tmp_path / "saved").exists()
    assert run.rows() == [1, 2]


@pytest.mark.slow
def test_further_sigterms_do_not_interrupt_the_end_of_the_run(tmp_path: Path) -> None:
    run = fit(tmp_path, config(at="fit_end", act="short"))
    run.until("step", times=2)
    run.send(signal.SIGTERM)
    run.until("AT fit_end")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        run.send(number)

    assert run.ended() == 143
    assert (tmp_path / "saved").exists()
    assert len(run.ends) == 1
    assert run.rows() == list(range(1, len(run.rows()) + 1))
    assert run.left() == []


@pytest.mark.slow
def test_second_ctrl_c_exits_immediately(tmp_path: Path) -> None:
    run = fit(tmp_path, config(at="fit_end"))
    run.until("step", times=2)
    run.send(signal.SIGINT)
    run.until("AT fit_end")
    sent = run.send(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - sent < 1
    assert run.err.endswith("aborted; writes in progress were not completed\n")
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_second_ctrl_c_exits_immediately_even_before_the_first_is_handled(tmp_path: Path) -> None:
    run = fit(tmp_path, config(at="validation"))
    run.until("AT validation")
    run.send(signal.SIGINT)
    run.wait_until_received(signal.SIGINT)  # two signals that are pending at once are one
    sent = run.send(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - sent < 1
    assert run.ends == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_worker_processes_ignore_a_signal_to_the_group_and_end_with_the_run(
    number: signal.Signals, tmp_path: Path
) -> None:
    run = fit(tmp_path, config(text=PROCESSES))
    run.until("step", times=2)
    sent = run.send_all(number)

    assert run.ended() == 128 + number
    assert time.monotonic() - sent < GRACE_S
    assert run.err.endswith("interrupted\n" if number == signal.SIGINT else "terminated\n")
    assert not any(said in run.err for said in ("Traceback", "started anew", "another error"))
    assert run.ends == [f"interrupted {len(run.rows())} {number.name}"]
    assert run.left() == []


@pytest.mark.slow
def test_signal_to_the_group_during_worker_startup_ends_the_run(tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=PROCESSES, at="iteration_start", step=1))
    run.until("AT")
    sent = run.send_all(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - sent < GRACE_S
    assert run.err.startswith("the run was interrupted in Faulty._reach (")
    assert run.err.endswith("\n0 steps complete, kept in runs/run\ninterrupted\n")
    assert run.left() == []


@pytest.mark.slow
def test_workers_end_with_the_run_after_a_second_ctrl_c(tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=PROCESSES, at="fit_end"))
    run.until("step", times=2)
    run.send(signal.SIGINT)
    run.until("AT fit_end")
    run.send(signal.SIGINT)

    assert run.ended() == 130
    assert [name for name in run.left() if not name.endswith(".lock")] == []


@pytest.mark.slow
@pytest.mark.parametrize("act", ["swallow", "wrap"])
def test_interruption_caught_by_a_plugin_still_ends_the_run(act: str, tmp_path: Path) -> None:
    run = fit(tmp_path, config(at="validation", act=act))
    run.until("AT")
    run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert run.ends == ["interrupted 2 SIGTERM"]
    if act == "wrap":
        assert "after SIGTERM there was another error: RuntimeError: raised by user code" in run.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_ignored_by_the_parent_process_is_ignored(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config())
    run = SubprocessRun(tmp_path, *FIT, "run.yaml", preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    run.until("step", times=2)
    run.send(number)
    run.until("step", times=3)
    run.send(signal.SIGTERM)

    assert run.ended() == 143


SCRIPT = """
import json, os, signal, sys, threading
from pathlib import Path
import hooktrainer
from hooktrainer import build_trainer, load_config
from hooktrainer._util.forks import HANDLED

def state():
    return [len(os.listdir('/proc/self/task')), sorted(t.name for t in threading.enumerate()),
            [str(signal.getsignal(n)) for n in HANDLED]]

trainer = build_trainer(load_config('run.yaml', overrides=sys.argv[1:]))
"""


def script(directory: Path, text: str, run: str, **options: object) -> SubprocessRun:
    (directory / "run.yaml").write_text(run)
    (directory / "script.py").write_text(SCRIPT + text)
    return SubprocessRun(directory, sys.executable, "-u", "script.py", **options)


@pytest.mark.slow
def test_signal_handlers_are_restored_and_custom_ones_called_after_the_run(tmp_path: Path) -> None:
    text = """
def mine(number, frame):
    print('mine', signal.Signals(number).name, Path('saved').exists())

signal.signal(signal.SIGTERM, mine)
before = [signal.getsignal(n) for n in HANDLED]
try:
    trainer.fit()
except SystemExit as error:
    print('exit', error.code)
print(before == [signal.getsignal(n) for n in HANDLED])
"""
    run = script(tmp_path, text, config(at="validation"))
    run.until("AT")
    run.send(signal.SIGTERM)

    assert run.ended() == 0, run.err
    assert run.out[-3:] == ["mine SIGTERM True", "exit 143", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["completed", "SIGINT", "boom"])
def test_script_has_its_signal_handlers_and_thread_count_restored_after_every_end(ending: str, tmp_path: Path) -> None:
    text = """
before = state()
try:
    trainer.fit()
except BaseException as error:
    print(type(error).__name__, error)
after = state()
print(before[1:] == after[1:], after)
"""
    act = "raise" if ending == "boom" else "sleep"
    text_of_run = config(act=act).replace("100000", "2") if ending == "completed" else config(at="save", act=act)
    run = script(tmp_path, text, text_of_run)
    if ending == "SIGINT":
        run.until("AT")
        run.send(signal.SIGINT)

    assert run.ended() == 0, run.err
    assert run.out[-1].startswith("True "), run.out
    expected = {"completed": "step 2/2", "SIGINT": "KeyboardInterrupt SIGINT", "boom": "ValueError boom"}
    assert run.out[-2].startswith(expected[ending])


@pytest.mark.slow
def test_run_in_a_thread_trains_without_installing_signal_handlers(tmp_path: Path) -> None:
    text = """
before = state()
results = []
thread = threading.Thread(target=lambda: results.append(trainer.fit()))
thread.start()
during = state()
thread.join()
while os.path.exists(f'/proc/self/task/{thread.native_id}'):  # join returns a moment before the kernel's thread ends
    pass
print(before == state(), before[2] == during[2], results[0].status, results[0].step)
"""
    run = script(tmp_path, text, config().replace("100000", "3"))

    assert run.ended() == 0, run.err
    assert run.out[-1] == "True True completed 3"


@pytest.mark.slow
def test_closed_terminal_ends_the_run_without_further_output(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config(at="validation"))
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*FIT, "run.yaml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FAULTY_PLUGINS.parent), os.environ.get("PYTHONPATH", "")]),
        },
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (no locks in it)
    )
    os.close(theirs)
    shown = b""
    while b"AT validation" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)

    assert process.wait(60) == 129
    assert (tmp_path / "ends").read_text() == "interrupted 2 SIGHUP\n"
