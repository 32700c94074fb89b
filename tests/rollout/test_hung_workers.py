"""Waits for groups and weight syncs name the worker that does not return, and where it hangs."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path

import attrs
import pytest

from helpers.faulty_tasks import NeverReturns
from helpers.rollouts import LENGTH, PATIENCE_S, TASK, generator_config, groups, publish
from hooktrainer.errors import StarvedError, SyncError
from hooktrainer.ports import RolloutEngine, Task
from hooktrainer.replay import buffer as replay_buffer
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.rollout.decode_batch import DecodeBatch
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.rollout.workers.engine import WorkerEngine
from hooktrainer.tasks.addition import Addition

STARVES = ReplayOptions(sample_timeout_s=0.3)


@attrs.frozen(kw_only=True)
class Hangs(Addition):
    """Waits in each `score` until `proceed` is set."""

    inside: threading.Event = attrs.field(factory=threading.Event)
    proceed: threading.Event = attrs.field(factory=threading.Event)

    def grade(self, truth: str, answer: str) -> float:
        self.inside.set()
        self.ask_the_judge()
        return 1.0

    def ask_the_judge(self) -> None:
        self.proceed.wait()


@pytest.fixture
def hanging() -> Iterator[Hangs]:
    task = Hangs()
    yield task
    task.proceed.set()


Start = Callable[..., RolloutEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts an engine on a buffer; the engines are closed after the test."""
    engines: list[RolloutEngine] = []

    def started(options: type, buffer: GroupBuffer, task: Task, **more: object) -> RolloutEngine:
        made = options(n=1, max_response_length=LENGTH, **more)
        engines.append(made.build(generator_config(task=task)))
        publish(engines[-1], 0)
        engines[-1].start(buffer)
        return engines[-1]

    yield started
    for engine in engines:
        engine.close()


def dispatched(count: int, limits: ReplayOptions = STARVES) -> GroupBuffer:
    buffer = GroupBuffer(limits)
    buffer.dispatch([group.prompt for group in groups(count)])
    return buffer


def sample(buffer: GroupBuffer) -> None:
    buffer.sample(1, 1, lambda _: None)


PLACE = r"Hangs\.ask_the_judge \(.*test_hung_workers\.py, line \d+\)"


def test_a_starved_run_names_the_thread_and_the_method_that_hang(start: Start, hanging: Hangs) -> None:
    buffer = dispatched(1)
    start(ThreadOptions, buffer, hanging)
    assert hanging.inside.wait(PATIENCE_S)

    with pytest.raises(StarvedError, match=rf"starved for 0\.3 s: .*; reward-0 is in {PLACE}, with group 0$"):
        sample(buffer)


def test_only_the_threads_with_groups_in_flight_are_named(start: Start, hanging: Hangs) -> None:
    buffer = dispatched(1)
    start(ThreadOptions, buffer, hanging, workers=3)
    assert hanging.inside.wait(PATIENCE_S)

    with pytest.raises(StarvedError, match=PLACE) as caught:
        sample(buffer)

    assert len(re.findall(r"re\w+-\d is in", str(caught.value))) == 1


def test_a_reminder_names_the_thread_and_the_method_that_hang(
    start: Start, hanging: Hangs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replay_buffer, "REMINDER_S", 0.1)
    buffer = dispatched(3)
    start(ThreadOptions, buffer, hanging)
    assert hanging.inside.wait(PATIENCE_S)

    with pytest.raises(StarvedError):
        sample(buffer)

    assert re.search(rf"still waiting: .*reward-\d is in {PLACE}, with group 0\b", caplog.text)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_group_that_times_out_names_the_thread_and_the_method_that_hang(
    workers: int, start: Start, hanging: Hangs, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = dispatched(1, ReplayOptions(group_timeout_s=0.2))
    start(ThreadOptions, buffer, hanging, workers=workers)
    assert hanging.inside.wait(PATIENCE_S)

    buffer.sample(1, 1, lambda _: None)  # no group is left

    assert re.search(
        rf"group 0 ran longer than replay\.group_timeout_s = 0\.2; reward-\d is in {PLACE}, with group 0\n",
        caplog.text,
    )


def test_a_sync_that_waits_for_a_thread_names_the_method_that_hangs(
    start: Start, hanging: Hangs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hooktrainer.weight_sync.waiting.REMINDER_S", 0.1)
    inside = threading.Event()

    def hang(batch: DecodeBatch) -> None:
        inside.set()
        hanging.proceed.wait()
        batch.rows.clear()

    monkeypatch.setattr(DecodeBatch, "step", hang)
    buffer = GroupBuffer(ReplayOptions())
    engine = start(ThreadOptions, buffer, hanging, slots=2, sync_timeout_s=0.3)
    buffer.dispatch([group.prompt for group in groups(64)])
    assert inside.wait(PATIENCE_S)
    publish(engine, 1)

    waits = r"rollout-0 to finish answers that started two versions ago"
    place = r"rollout-0 is in Scheduler\.step \(.*scheduler\.py, line \d+\)"
    with pytest.raises(SyncError, match=rf"waited 0\.3 s .* for {waits}\. Either .*; {place}$"):
        publish(engine, 2)

    assert re.search(rf"weight sync is still waiting for {waits}; {place}\n", caplog.text)


def ready_worker(engine: WorkerEngine) -> int:
    """Wait until the only worker is ready; return its pid."""
    pool = engine._pool
    with pool._changed:
        assert pool._changed.wait_for(lambda: pool._workers[0].free_capacity, PATIENCE_S)
    return active_children()[0].pid


@pytest.mark.slow
def test_a_starved_run_names_the_process_that_is_stopped(start: Start) -> None:
    buffer = GroupBuffer(STARVES)
    pid = ready_worker(start(ProcessOptions, buffer, TASK, workers=1))
    os.kill(pid, signal.SIGSTOP)
    buffer.dispatch([group.prompt for group in groups(2)])

    with pytest.raises(StarvedError, match=rf"; rollout worker 0 \(pid {pid}\) is stopped \(SIGCONT resumes it\)"):
        sample(buffer)


def test_a_starved_run_names_the_process_that_is_stopped_while_it_starts(start: Start) -> None:
    buffer = dispatched(2)
    engine = start(ProcessOptions, buffer, TASK, workers=2)
    pid = engine._pool._workers[1].process.pid
    os.kill(pid, signal.SIGSTOP)
    os.kill(engine._pool._workers[0].process.pid, signal.SIGSTOP)

    with pytest.raises(StarvedError, match=rf"rollout worker 1 \(pid {pid}\) is stopped \(SIGCONT resumes it\)"):
        sample(buffer)


@pytest.fixture
def stuck(tmp_path: Path) -> NeverReturns:
    task = NeverReturns(inside=tmp_path / "inside", once=tmp_path / "once")
    os.mkfifo(task.inside)
    return task


@pytest.mark.slow
def test_a_starved_run_names_the_process_that_hangs_and_its_last_request(
    start: Start, stuck: NeverReturns, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = dispatched(1, ReplayOptions(group_timeout_s=0.2))
    engine = start(ProcessOptions, buffer, stuck, workers=1)
    stuck.inside.open().close()
    busy = (
        rf"rollout worker 0 \(pid {active_children()[0].pid}\) is running, with group 0; "
        r"its last request was Generate, \d+ s ago"
    )
    buffer.sample(1, 1, lambda _: None)  # no group is left

    assert re.search(rf"group 0 ran longer than replay\.group_timeout_s = 0\.2; {busy}\n", caplog.text)
    engine.pause()
    described = engine.describe_workers()
    assert re.search(busy.replace("Generate", "Pause"), described)


@pytest.mark.slow
def test_the_end_of_a_run_names_the_method_of_a_process_that_hangs(
    start: Start, stuck: NeverReturns, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(ProcessOptions, dispatched(1), stuck, workers=1)
    stuck.inside.open().close()
    engine.close()

    assert re.search(
        r"rollout worker 0 \(pid \d+\) was ended with group 0 in flight; "
        r"its thread reward-0 is in NeverReturns\.grade \(.*faulty_tasks\.py, line \d+\)\n",
        caplog.text,
    )


@pytest.mark.slow
def test_a_worker_that_is_killed_by_a_sync_is_named_with_its_state(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(ProcessOptions, GroupBuffer(), TASK, workers=1, sync_timeout_s=0.3)
    os.kill(ready_worker(engine), signal.SIGSTOP)
    engine.pause()

    assert "sending SIGKILL; it is stopped (SIGCONT resumes it)" in caplog.text
    engine.resume()
