"""Worker processes: their errors arrive, dead ones are replaced, and none outlives its engine."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import attrs
import pytest
from torch import nn

from helpers.faulty_tasks import Faulty, ForksThenDies, PicklesOneWay, Unpicklable, WaitsInScore
from helpers.rollouts import LENGTH, SOON_S, TASK, Queue, build, generator_config, groups, publish, versions_of
from hooktrainer import Plugin, build_trainer, on
from hooktrainer.errors import ConfigError, RolloutError, SyncError
from hooktrainer.events import FitEnd, IterationEnd
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Task
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.workers.engine import WorkerEngine
from hooktrainer.rollout.workers.messages import PackedError
from hooktrainer.run.loading import config_from_mapping

Make: type = Callable[..., WorkerEngine]


@pytest.fixture
def make() -> Iterator[Callable[..., WorkerEngine]]:
    """Return a function that makes engines with published weights; close them, and check that nothing remains."""
    memory = sorted(path.name for path in Path("/dev/shm").iterdir())
    engines: list[WorkerEngine] = []

    def made(task: Task = TASK, policy: Callable[[], nn.Module] = build, **options: float) -> WorkerEngine:
        process = ProcessOptions(n=2, max_response_length=LENGTH, **{"workers": 1, **options})
        engine = process.build(generator_config(policy, task, 0))
        engines.append(engine)
        publish(engine, 0)
        return engine

    yield made
    for engine in engines:
        engine.close()
    assert not active_children()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]
    assert sorted(path.name for path in Path("/dev/shm").iterdir()) == memory


def started(engine: WorkerEngine, count: int = 1) -> Queue:
    queue = Queue(groups(count))
    engine.start(queue)
    return queue


class TestErrors:
    @pytest.mark.slow
    def test_exception_of_a_worker_keeps_its_type_and_traceback(self, make: Make) -> None:
        queue = started(make(Faulty(act="boom")))
        queue.wait_for(1)
        error, reason = queue.failed[0]
        assert (type(error), reason) == (ValueError, "error")
        assert "in score" in str(error.__cause__)
        assert 'raise ValueError(f"boom at' in str(error.__cause__)

    @pytest.mark.parametrize(
        "error", [PicklesOneWay("one", "other"), Unpicklable()], ids=["pickles one way", "unpicklable"]
    )
    def test_exception_that_cannot_be_pickled_is_reported_as_text(self, error: Exception) -> None:
        arrived = pickle.loads(pickle.dumps(PackedError.of(error))).unpack()
        assert isinstance(arrived, RolloutError)
        assert str(error) in str(arrived)
        assert type(error).__name__ in str(arrived)

    @pytest.mark.slow
    def test_system_exit_in_a_worker_ends_the_run(self, make: Make) -> None:
        engine = make(Faulty(act="system exit"))
        queue = started(engine)
        queue.wait_until(lambda: queue.closed)
        with pytest.raises(RolloutError, match=r"rollout worker 0 \(pid \d+\) cannot continue") as caught:
            engine.pump()
        assert isinstance(caught.value.__cause__.__cause__, SystemExit)

    def test_policy_that_cannot_be_pickled_is_refused_by_build(self) -> None:
        with pytest.raises(ConfigError, match=r"cannot be pickled.*`rollout: \{use: thread\}`, which needs"):
            ProcessOptions().build(generator_config(lambda: build()))  # noqa: PLW0108 - that is the point


class TestDeaths:
    def test_groups_of_a_killed_worker_fail_and_a_new_worker_answers_the_next(self, make: Make, tmp_path: Path) -> None:
        engine = make(Faulty(act="kill", once=tmp_path / "killed"))
        queue = started(engine, 2)
        queue.wait_for(1)
        publish(engine, 1)
        queue.wait_for(2)
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(2)])
        queue.wait_for(4)

        assert {reason for _, reason in queue.failed.values()} == {"worker_died"}
        for number, (error, _) in queue.failed.items():
            assert f"was killed by SIGKILL while it answered group {number}" in str(error)
        assert versions_of(queue.finished[11]) == {1}
        assert engine.take_metrics()["rollout/restarts"].value == 1
        assert engine.take_metrics()["rollout/restarts"].value == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("error", [OSError(errno.ENOSYS, "not implemented"), PermissionError(errno.EPERM, "no")])
    def test_a_death_is_seen_where_the_system_has_no_pidfd(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        def refused(pid: int) -> int:
            raise error

        monkeypatch.setattr(os, "pidfd_open", refused)
        engine = make(Faulty(act="kill"))
        queue = started(engine)
        queue.wait_for(1)
        assert "was killed by SIGKILL while it answered group 0" in str(queue.failed[0][0])
        engine.close()

    @pytest.mark.slow
    def test_a_death_is_seen_while_a_fork_in_a_session_of_its_own_holds_the_connection(
        self, make: Make, tmp_path: Path
    ) -> None:
        engine = make(ForksThenDies(pid=tmp_path / "pid"))
        queue = started(engine)
        queue.wait_for(1)
        assert "was killed by SIGKILL while it answered group 0" in str(queue.failed[0][0])
        engine.close()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it is none of ours, and still lives

    @pytest.mark.slow
    def test_a_blocked_send_ends_when_a_worker_dies_whose_fork_holds_the_connection(
        self, make: Make, tmp_path: Path
    ) -> None:
        engine = make(ForksThenDies(pid=tmp_path / "pid", dies=False))
        started(engine).wait_for(1)
        worker = engine._pool._workers[0]
        os.kill(worker.process.pid, signal.SIGSTOP)
        sender = threading.Thread(target=worker.send, args=(bytes(10_000_000),))
        sender.start()
        worker.kill()
        sender.join(60)
        assert not sender.is_alive()
        engine.close()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    @pytest.mark.slow
    def test_more_deaths_than_max_restarts_end_the_run_with_a_hint(self, make: Make) -> None:
        engine = make(Faulty(act="kill"), max_restarts=1)
        queue = started(engine)
        queue.wait_for(1)
        queue.dispatch([attrs.evolve(groups(1)[0], number=5)])
        queue.wait_until(lambda: queue.closed)
        with pytest.raises(RolloutError, match=r"killed by SIGKILL after 1 restarts\. If no user killed it"):
            engine.pump()

    @pytest.mark.slow
    def test_a_worker_that_exits_early_counts_as_dead(self, make: Make) -> None:
        queue = started(make(Faulty(act="exit")))
        queue.wait_for(1)
        error, reason = queue.failed[0]
        assert reason == "worker_died"
        assert "returned early, with exit code 0 while it answered group 0" in str(error)

    @pytest.mark.slow
    def test_workers_ignore_sigint(self, make: Make) -> None:
        engine = make()
        queue = started(engine)
        queue.wait_for(1)
        os.kill(active_children()[0].pid, signal.SIGINT)
        queue.dispatch([attrs.evolve(groups(1)[0], number=5)])
        queue.wait_for(2)
        assert sorted(queue.finished) == [0, 5]
        assert engine.take_metrics()["rollout/restarts"].value == 0


@pytest.fixture
def blocked(tmp_path: Path) -> WaitsInScore:
    task = WaitsInScore(inside=tmp_path / "inside", proceed=tmp_path / "proceed")
    os.mkfifo(task.inside)
    os.mkfifo(task.proceed)
    return task


@attrs.frozen
class StuckPolicy:
    """Makes policies; the first that decodes a token in a worker opens the pipe `inside` and never returns."""

    inside: Path
    once: Path

    def __call__(self) -> nn.Module:
        module = build()
        module.decode = partial(self.decode, module)  # type: ignore[assignment]
        return module

    def decode(self, module: Any, *arguments: object) -> object:
        if multiprocessing.parent_process() is not None and not self.once.exists():
            self.once.touch()
            self.inside.open("w").close()
            signal.pause()
        return type(module).decode(module, *arguments)


@pytest.fixture
def stuck(tmp_path: Path) -> StuckPolicy:
    policy = StuckPolicy(inside=tmp_path / "inside", once=tmp_path / "once")
    os.mkfifo(policy.inside)
    return policy


class TestSyncs:
    @pytest.mark.slow
    def test_worker_whose_answer_never_ends_is_killed_by_a_sync_and_restarted(
        self, make: Make, stuck: StuckPolicy, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(policy=stuck, sync_timeout_s=0.5)
        queue = started(engine, 8)
        stuck.inside.open().close()
        pid = active_children()[0].pid
        publish(engine, 1)
        publish(engine, 2)  # into the set that the worker reads
        assert engine.version == 2
        assert (
            f"rollout worker 0 (pid {pid}) did not finish answers that started two versions ago within 0.5 s "
            "(rollout.sync_timeout_s), with groups "
        ) in caplog.text
        queue.wait_for(1)
        assert {reason for _, reason in queue.failed.values()} == {"worker_died"}
        queue.dispatch([attrs.evolve(group, number=10 + number) for number, group in enumerate(groups(2))])
        queue.wait_until(lambda: {10, 11} <= queue.finished.keys())
        assert versions_of(queue.finished[10]) == {2}

    @pytest.mark.slow
    def test_more_hanging_workers_than_max_restarts_fail_the_next_sync(self, make: Make, stuck: StuckPolicy) -> None:
        engine = make(policy=stuck, sync_timeout_s=0.5, max_restarts=0)
        queue = started(engine, 8)
        stuck.inside.open().close()
        publish(engine, 1)
        with pytest.raises(RolloutError, match=r"killed by SIGKILL after 0 restarts"):  # noqa: PT012 (raised by either call)
            publish(engine, 2)
            queue.wait_until(lambda: queue.closed)
            publish(engine, 3)

    @pytest.mark.slow
    @pytest.mark.parametrize("call", ["release", "pause", "use", "score", "resume"])
    def test_a_sync_kills_a_stopped_worker_and_continues_without_it(
        self, make: Make, call: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(sync_timeout_s=0.5)
        queue = started(engine)
        queue.wait_for(1)
        pid = active_children()[0].pid
        os.kill(pid, signal.SIGSTOP)
        arguments = {"release": (0,), "use": (1, 0), "score": (groups(1)[0].prompt.tokens,)}
        said = getattr(engine._pool, call)(*arguments.get(call, ()))
        assert not said
        assert f"rollout worker 0 (pid {pid}) did not " in caplog.text
        assert "within 0.5 s (rollout.sync_timeout_s); sending SIGKILL" in caplog.text
        engine.resume()
        queue.dispatch([attrs.evolve(groups(1)[0], number=5)])
        queue.wait_for(2)
        assert list(queue.finished) == [0, 5]

    @pytest.mark.slow
    def test_stopped_worker_with_a_full_pipe_delays_no_other_worker(self, make: Make) -> None:
        engine = make(sync_timeout_s=0.5, workers=2)
        started(engine, 64).wait_for(64)
        with engine._pool._changed:  # one worker may have answered all groups before the other was ready
            engine._pool._changed.wait_for(lambda: all(worker.ready for worker in engine._pool._workers), 30)
        ours = engine._pool._workers[0]
        os.kill(ours.process.pid, signal.SIGSTOP)
        while ours.send(None, 0.0):
            pass
        other = engine._pool._workers[1].process.pid
        engine.pause()
        assert [child.pid for child in active_children() if child.pid == other] == [other]
        assert ours.is_dead()
        engine.resume()

    @pytest.mark.slow
    def test_unflip_has_a_short_deadline_and_names_late_workers(self, make: Make) -> None:
        engine = make()
        started(engine).wait_for(1)
        engine.stage(full_state(build()), 1)
        engine.flip()
        pid = active_children()[0].pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        late = rf"rollout worker 0 \(pid {pid}\) did not use version 0 within 1\.5 s, and was killed"
        with pytest.raises(SyncError, match=late):
            engine.unflip()
        engine.unflip()
        engine.resume()
        assert time.monotonic() - began < SOON_S
        assert engine.version == 0


class TestEnds:
    @pytest.mark.slow
    def test_slow_score_does_not_delay_a_sync(self, make: Make, blocked: WaitsInScore) -> None:
        engine = make(blocked)
        queue = started(engine)
        blocked.inside.open().close()
        publish(engine, 1)
        assert engine.version == 1
        blocked.proceed.open("w").close()
        blocked.inside.open().close()
        blocked.proceed.open("w").close()
        queue.wait_for(1)
        assert versions_of(queue.finished[0]) == {0}

    @pytest.mark.slow
    def test_a_score_that_never_returns_does_not_delay_close(
        self, make: Make, blocked: WaitsInScore, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(blocked)
        started(engine)
        blocked.inside.open().close()
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < SOON_S
        assert "sending" not in caplog.text

    @pytest.mark.slow
    def test_a_worker_that_does_not_end_is_killed_and_named(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        engine = make()
        started(engine).wait_for(1)
        pid = active_children()[0].pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            engine.close()
        assert time.monotonic() - began < SOON_S
        assert [record.getMessage() for record in caplog.records] == [
            f"rollout worker 0 (pid {pid}) did not return within 2 s; sending SIGKILL"
        ]

    def test_engine_closes_quickly_right_after_start(self, make: Make) -> None:
        engine = make(workers=2)
        started(engine)
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < SOON_S


@attrs.define(kw_only=True)
class Killer(Plugin):
    """A plugin that kills a worker in step 2."""

    ends: list[str] = attrs.field(factory=list)

    @on(IterationEnd)
    def kill(self, event: IterationEnd) -> None:
        if event.step == 2:
            os.kill(active_children()[0].pid, signal.SIGKILL)

    @on(FitEnd)
    def end(self, event: FitEnd) -> None:
        self.ends.append(event.status)


FILE_TASK = """
import time
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

@attrs.frozen(kw_only=True)
class Mine(SortDigits):
    fails: bool = False

    def grade(self, truth: str, answer: str) -> float:
        if self.fails:
            raise ValueError(f"boom at {time.monotonic()}")
        return super().grade(truth, answer)
"""


def run(directory: Path, **task: object) -> object:
    (directory / "mine.py").write_text(FILE_TASK)
    mapping = {
        "task": {"use": f"{directory}/mine.py:Mine", "digits": 3, **task},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "process", "workers": 2, "n": 2, "max_response_length": 4},
        "trainer": {"total_steps": 12, "train_batch_size": 8, "ppo_mini_batch_size": 8, "num_warmup_batches": 1},
        "run": {"dir": str(directory / "runs")},
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            {"use": f"{__file__}:Killer"},
            {"use": "log_after_collect", "sinks": ["jsonl"]},
        ],
    }
    return build_trainer(config_from_mapping(mapping))


class TestRuns:
    @pytest.mark.slow
    def test_a_run_continues_after_a_worker_was_killed(self, tmp_path: Path) -> None:
        trainer = run(tmp_path)
        result = trainer.fit()
        assert (result.status, result.step) == ("completed", 12)
        assert not active_children()
        rows = [json.loads(line) for line in next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, 13))
        late = trainer.ports.engine.take_metrics()["rollout/restarts"].value  # restarts after the last row
        assert sum(row["rollout/restarts"] for row in rows) + late == 1
        assert [row["ledger/imbalance"] for row in rows] == [0] * 12
        assert trainer.ports.buffer.ledger.sampled.groups == 12 * 8

    @pytest.mark.slow
    def test_error_in_a_worker_is_raised_by_fit_soon(self, tmp_path: Path) -> None:
        trainer = run(tmp_path, fails=True)
        with pytest.raises(RolloutError) as caught:
            trainer.fit()
        ended = time.monotonic()
        error = caught.value.__cause__
        assert isinstance(error, ValueError)
        assert ended - float(str(error).removeprefix("boom at ")) < SOON_S
        killer = next(entry.plugin for entry in trainer.bus.plan.plugins if type(entry.plugin).__name__ == "Killer")
        assert killer.ends == ["failed"]
        assert not active_children()
