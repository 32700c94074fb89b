"""Ray actors: their errors arrive, dead ones are replaced with the current weights, and none outlives its engine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import attrs
import numpy as np
import pytest

from helpers.faulty_tasks import Faulty
from helpers.rollouts import LENGTH, PATIENCE_S, TASK, Queue, build, generator_config, groups, publish, versions_of
from helpers.subprocess_runs import PROCESSES, config, processes_of
from hooktrainer import Plugin, build_trainer, on
from hooktrainer.errors import ConfigError
from hooktrainer.events import IterationEnd
from hooktrainer.models.policy import full_state
from hooktrainer.plugin import port
from hooktrainer.ports import RolloutEngine, Task
from hooktrainer.rollout.ray.engine import RayOptions
from hooktrainer.rollout.workers.engine import WorkerEngine
from hooktrainer.rollout.workers.messages import WorkerFailed
from hooktrainer.run.loading import config_from_mapping

OUTCOME_S = 30.0
"""10 s on a machine that is not busy."""


def test_without_the_library_the_options_state_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'hooktrainer\[ray\]'"):
        RayOptions()


@pytest.mark.parametrize("resources", [{"CPU": 1}, {"GPU": 1}, {"node": 0}, {"node": "one"}, {"node": True}])
def test_resources_that_are_not_custom_amounts_are_refused(resources: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(resources))):
        RayOptions(resources=resources)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start Ray once for all tests of the module, which engines then leave running."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def make(cluster: None) -> Iterator[Callable[..., WorkerEngine]]:
    engines: list[WorkerEngine] = []

    def made(task: Task = TASK, **options: float) -> WorkerEngine:
        ray = RayOptions(n=2, max_response_length=LENGTH, num_cpus=0.5, **{"workers": 1, **options})
        engines.append(ray.build(generator_config(build, task, 0)))
        publish(engines[-1], 0)
        return engines[-1]

    yield made
    pids = [worker._pid for engine in engines for worker in engine._pool._workers]
    for engine in engines:
        engine.close()
    assert not [pid for pid in pids if pid is not None and is_running(pid)]


def is_running(pid: int) -> bool:
    deadline = time.monotonic() + OUTCOME_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return Path(f"/proc/{pid}").exists()


def started(engine: WorkerEngine, count: int = 1) -> Queue:
    queue = Queue(groups(count))
    engine.start(queue)
    return queue


def wait_until_ready(engine: WorkerEngine, restarts: int = 0) -> int:
    """Wait for a worker after this many restarts; return its pid."""
    pool = engine._pool
    with pool._changed:
        assert pool._changed.wait_for(
            lambda: pool._workers[0].ready and pool._workers[0].restarts == restarts, PATIENCE_S
        )
    pid: int = pool._workers[0]._pid
    return pid


@pytest.mark.slow
class TestActors:
    def test_end_of_an_actor_stays_visible_after_its_messages_were_read(self, cluster: None) -> None:
        from hooktrainer.rollout.ray.handle import ActorHandle

        handle = ActorHandle(0, 0, config=b"no configuration", num_cpus=0.5, resources={})
        handle.hang_up()
        assert handle.is_dead(PATIENCE_S)
        messages = list(handle.received())  # also reads the bytes that wake the pool
        assert isinstance(messages[0], WorkerFailed)
        assert wait(handle.waitables(), OUTCOME_S) != []
        handle.close()

    def test_exception_of_an_actor_keeps_its_type_and_traceback(self, make: Callable[..., WorkerEngine]) -> None:
        queue = started(make(Faulty(act="boom")))
        queue.wait_for(1)
        error, reason = queue.failed[0]
        assert (type(error), reason) == (ValueError, "error")
        assert 'raise ValueError(f"boom at' in str(error.__cause__)

    def test_groups_of_a_killed_actor_fail_and_a_new_one_answers_the_next(
        self, make: Callable[..., WorkerEngine], tmp_path: Path
    ) -> None:
        engine = make(Faulty(act="kill", once=tmp_path / "killed"))
        queue = started(engine, 2)
        queue.wait_for(1)
        since = time.monotonic()
        publish(engine, 1)
        queue.wait_for(2)
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(2)])
        queue.wait_for(4)
        assert time.monotonic() - since < OUTCOME_S
        assert {reason for _, reason in queue.failed.values()} == {"worker_died"}
        assert "while it answered group" in str(next(iter(queue.failed.values()))[0])
        assert versions_of(queue.finished[11]) == {1}
        assert engine.take_metrics()["rollout/restarts"].value == 1

    def test_an_actor_that_starts_between_stage_and_flip_has_the_staged_weights(
        self, make: Callable[..., WorkerEngine]
    ) -> None:
        engine = make()
        started(engine).wait_for(1)
        state = full_state(build(seed=1))
        first = list(state)[:3]
        engine.stage({name: state[name] for name in first}, 1)
        since = time.monotonic()
        os.kill(wait_until_ready(engine), signal.SIGKILL)
        wait_until_ready(engine, restarts=1)
        assert time.monotonic() - since < OUTCOME_S
        engine.stage({name: tensor for name, tensor in state.items() if name not in first}, 1)
        engine.pause()
        engine.flip()
        ours, theirs = engine.logprobs(groups(1)[0].prompt.tokens)
        engine.resume()
        np.testing.assert_allclose(ours, theirs, atol=1e-6)

    def test_a_sync_kills_a_stopped_actor_and_continues_without_it(
        self, make: Callable[..., WorkerEngine], caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(sync_timeout_s=0.5)
        queue = started(engine)
        queue.wait_for(1)
        pid = wait_until_ready(engine)
        os.kill(pid, signal.SIGSTOP)
        publish(engine, 1)
        assert f"rollout worker 0 (pid {pid} on " in caplog.text
        assert "within 0.5 s (rollout.sync_timeout_s); sending SIGKILL; it is stopped" in caplog.text
        assert not is_running(pid)
        queue.dispatch([attrs.evolve(groups(1)[0], number=5)])
        queue.wait_for(2)
        assert versions_of(queue.finished[5]) == {1}


@attrs.define(kw_only=True)
class KillsActor(Plugin):
    """Kills an actor in step 2, with or without groups in flight."""

    engine: RolloutEngine = port()

    @on(IterationEnd)
    def kill(self, event: IterationEnd) -> None:
        if event.step == 2:
            os.kill(wait_until_ready(self.engine), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_continues_after_an_actor_was_killed_and_loses_no_prompt(cluster: None, tmp_path: Path) -> None:
    mapping = {
        "task": {"use": "sort_digits", "digits": 3},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "ray", "workers": 2, "n": 2, "max_response_length": 4},
        "trainer": {"total_steps": 12, "train_batch_size": 8, "ppo_mini_batch_size": 8, "num_warmup_batches": 1},
        "run": {"dir": str(tmp_path / "runs")},
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            {"use": f"{__file__}:KillsActor"},
            {"use": "log_after_collect", "sinks": ["jsonl"]},
        ],
    }
    trainer = build_trainer(config_from_mapping(mapping))
    result = trainer.fit()
    assert (result.status, result.step) == ("completed", 12)
    rows = [json.loads(line) for line in next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
    assert [row["ledger/imbalance"] for row in rows] == [0] * 12
    late = trainer.ports.engine.take_metrics()["rollout/restarts"].value  # restarts after the last row
    assert sum(row["rollout/restarts"] for row in rows) + late == 1
    assert trainer.ports.buffer.ledger.sampled.groups == 12 * 8


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_no_process_of_ray(number: int, tmp_path: Path) -> None:
    text = PROCESSES.replace("use: process", "use: ray")
    (tmp_path / "run.yaml").write_text(config(text=text).replace("faulty_plugins:Faulty", "staleness"))
    fit = [sys.executable, "-m", "hooktrainer", "fit", "run.yaml", "trainer.total_steps=100000"]
    run = subprocess.Popen(fit, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    rows = None
    deadline = time.monotonic() + PATIENCE_S
    while not rows and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        rows = [path for path in tmp_path.glob("runs/*/metrics.jsonl") if path.stat().st_size]
    found = processes_of(os.getsid(run.pid)) if run.poll() is None else []
    children = [int(stat.split()[0]) for stat in found]
    assert len(children) > 2
    run.send_signal(number)
    out = run.communicate(timeout=PATIENCE_S)[0].decode()
    assert run.returncode == 128 + number, out
    assert [pid for pid in children if is_running(pid)] == []
