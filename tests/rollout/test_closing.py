"""Environments with `close`: each one that was made is closed once, however its answer ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.environments import Closable, Countdown, LoggedTalk, Scripted, Talk, recorded
from helpers.rollouts import PATIENCE_S, TASK, Queue, generator_config, groups, publish
from hooktrainer import build_trainer
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Answer, Example, Prompt, SupportsClose
from hooktrainer.rollout import engine as engines
from hooktrainer.rollout.closing import OpenEnvironments
from hooktrainer.rollout.conversation import Conversation
from hooktrainer.rollout.engine import Engine, make_parts
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.ray.engine import RayOptions
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.rollout.score_options import ScoreOptions
from hooktrainer.rollout.score_pool import ScorePool
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.run.loading import config_from_mapping

LONG = 24
BASE: dict[str, Any] = {"n": 2, "max_response_length": LONG}
LOCAL = {
    "inline": InlineOptions(**BASE),
    "thread": ThreadOptions(**BASE, workers=2, slots=3, on_sync="continue"),
    "thread by group": ThreadOptions(**BASE, workers=1, batching="group"),
}


def built(task: Talk, options: Any = LOCAL["inline"], **changed: Any) -> Any:
    config = attrs.evolve(generator_config(Scripted, task, 0), max_length=TASK.longest_prompt + LONG)
    engine = attrs.evolve(options, **changed).build(config)
    publish(engine, 3, full_state(Scripted()))
    return engine


def answered(task: Talk, options: Any = LOCAL["inline"], count: int = 3, **changed: Any) -> Queue:
    """Return what an engine did with some groups, after it was closed."""
    engine = built(task, options, **changed)
    try:
        queue = Queue(groups(count))
        engine.start(queue)
        engine.pump()
        queue.wait_for(count)
    finally:
        engine.close()
    return queue


def closed(task: Talk) -> list[int]:
    return [one.closed for one in task.made]


class NeverCloses(Closable):
    """`close` returns when the test allows it."""

    release = threading.Event()

    def close(self) -> None:
        super().close()
        NeverCloses.release.wait(PATIENCE_S)


class Unblocked(Closable):
    """The second turn ends when the environment is closed."""

    entered = threading.Semaphore(0)

    def step(self, answer: Answer) -> Any:
        if answer.turn == 1:
            self.gate: threading.Event = getattr(self, "gate", threading.Event())
            Unblocked.entered.release()
            assert self.gate.wait(PATIENCE_S)
        return super().step(answer)

    def close(self) -> None:
        super().close()
        if hasattr(self, "gate"):
            self.gate.set()


class Announces(Closable):
    seen = threading.Semaphore(0)

    def close(self) -> None:
        super().close()
        Announces.seen.release()


@attrs.define
class OnALoop(Closable):
    loops: list[Any] = attrs.field(factory=list)

    async def step(self, answer: Answer) -> Any:  # type: ignore[override]
        self.loops.append(asyncio.get_running_loop())
        return super().step(answer)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.loops.append(asyncio.get_running_loop())
        super().close()


class AsynchronousHang(OnALoop):
    async def step(self, answer: Answer) -> Any:  # type: ignore[override]
        self.loops.append(asyncio.get_running_loop())
        await asyncio.Event().wait()


class NoMethod(Countdown):
    close = 3.5


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    NeverCloses.release = threading.Event()
    Unblocked.entered, Announces.seen = threading.Semaphore(0), threading.Semaphore(0)
    yield
    NeverCloses.release.set()


ENDINGS: dict[str, dict[str, Any]] = {
    "score": {},
    "score in the first turn": {"replies": ()},
    "error": {"replies": ("+1", ZeroDivisionError())},
    "reply of another kind": {"replies": (None,)},
    "observation that cannot be encoded": {"replies": ("letters",)},
    "observation that does not fit": {"replies": ("1" * 40,)},
    "cut off": {"replies": ("0", "1")},
    "too many turns": {"replies": ("+1",) * 9},
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_of_an_answer_closes_its_environment_once(name: str, ending: str) -> None:
    task = Talk(of=Closable, **ENDINGS[ending])
    answered(task, LOCAL[name], max_turns=4)
    assert set(closed(task)) == {1}
    assert not any(one.overlapped for one in task.made)


def test_error_that_ends_the_run_closes_all_environments() -> None:
    task = Talk(of=Closable, replies=(SystemExit(3),))
    with pytest.raises(SystemExit):
        answered(task)
    assert closed(task) == [1] * 6


@pytest.mark.parametrize("name", LOCAL)
def test_environments_are_closed_while_the_run_goes_on(name: str) -> None:
    task = Talk(of=Announces)
    engine = built(task, LOCAL[name])
    queue = Queue(groups(2))
    engine.start(queue)
    engine.pump()
    for _ in range(4):
        assert Announces.seen.acquire(timeout=PATIENCE_S)
    assert closed(task) == [1] * 4
    engine.close()
    engine.close()
    assert closed(task) == [1] * 4


@pytest.mark.parametrize("name", LOCAL)
def test_asynchronous_close_runs_in_the_loop_of_the_other_methods(name: str) -> None:
    task = Talk(of=OnALoop)
    answered(task, LOCAL[name])
    assert set(closed(task)) == {1}
    assert all(len({id(loop) for loop in one.loops}) == 1 for one in task.made)


@pytest.mark.parametrize("name", LOCAL)
def test_environment_that_timed_out_is_closed_which_can_end_its_step(name: str) -> None:
    task = Talk(of=Unblocked)
    queue = answered(task, LOCAL[name], count=1, turn_timeout_s=0.2)
    assert queue.failed[0][1] == "timeout"
    assert closed(task) == [1, 1]


def test_asynchronous_step_that_timed_out_is_cancelled_before_close() -> None:
    task = Talk(of=AsynchronousHang)
    queue = answered(task, count=1, turn_timeout_s=0.1)
    assert queue.failed[0][1] == "timeout"
    assert closed(task) == [1, 1]
    assert len({id(loop) for one in task.made for loop in one.loops}) == 1


@pytest.mark.parametrize("of", [Unblocked, AsynchronousHang])
def test_environments_of_answers_in_flight_are_closed_with_the_engine(of: type[Closable]) -> None:
    task = Talk(of=of)
    engine = built(task, LOCAL["thread"])
    queue = Queue(groups(3))
    engine.start(queue)
    if of is Unblocked:
        assert Unblocked.entered.acquire(timeout=PATIENCE_S)
    else:
        queue.wait_until(lambda: len(queue.claimed) == 3)
    engine.close()
    assert not queue.finished
    assert set(closed(task)) == {1}


def test_environments_that_were_made_and_never_asked_are_closed() -> None:
    task = Talk(of=Closable)
    generator, _ = make_parts(InlineOptions(**BASE), generator_config(Scripted, task, 0))
    generator.requests(groups(1)[0])
    generator.close()
    generator.requests(groups(1)[0])  # by a worker that notices the end late
    generator.finish(PATIENCE_S)
    assert not generator.join(PATIENCE_S)
    assert closed(task) == [1] * 4


def test_validation_closes_environments() -> None:
    task = Talk(of=Closable)
    engine = built(task)
    engine.answer([group.prompt for group in groups(3)])
    engine.close()
    assert closed(task) == [1] * 3


def test_answer_that_starts_again_after_a_failed_sync_closes_the_environment_after_its_reply() -> None:
    task = Talk(of=Gated)
    Gated.entered, Gated.release = threading.Event(), threading.Event()
    config = attrs.evolve(generator_config(Scripted, task, 0), max_length=TASK.longest_prompt + LONG)
    generator, weights = make_parts(InlineOptions(n=1, max_response_length=LONG), config)
    for version in (3, 4):
        weights.stage(full_state(Scripted()), version)
        weights.flip()
    scheduler = Scheduler(generator)
    scheduler.add(groups(1))
    for _ in range(2):
        scheduler.step()
    assert Gated.entered.wait(PATIENCE_S)
    weights.unflip()
    scheduler.step()
    assert (len(task.made), closed(task)) == (2, [0, 0])
    Gated.release.set()
    while not scheduler.step():
        pass
    generator.close()
    generator.finish(PATIENCE_S)
    assert not generator.join(PATIENCE_S)
    assert closed(task) == [1, 1]
    assert not any(one.overlapped for one in task.made)


class Gated(Closable):
    entered = threading.Event()
    release = threading.Event()

    def reset(self, example: Example) -> Any:
        self.busy = True
        Gated.entered.set()
        assert Gated.release.wait(PATIENCE_S)
        return super().reset(example)


class TestFaults:
    @pytest.mark.parametrize("name", LOCAL)
    def test_close_that_raises_is_a_warning(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        task = Talk(of=Raises)
        queue = answered(task, LOCAL[name], count=1)
        assert (len(queue.finished), closed(task)) == (1, [1, 1])
        prompt = groups(1)[0].prompt.text
        assert caplog.messages == [f"Raises.close: after the answer to {prompt!r}: OSError: the browser is gone"] * 2

    def test_close_that_hangs_is_a_warning_and_its_thread_is_replaced(self, caplog: pytest.LogCaptureFixture) -> None:
        task = Talk(of=NeverCloses)
        engine = built(task, turn_timeout_s=0.2)
        queue = Queue(groups(4))
        engine.start(queue)
        engine.pump()
        wait_for(lambda: "did not return" in caplog.text)
        NeverCloses.release.set()
        engine.close()
        assert not queue.failed
        assert closed(task) == [1] * 8
        assert "NeverCloses.close did not return within rollout.turn_timeout_s = 0.2 s; it is in" in caplog.text

    def test_close_that_hangs_does_not_hang_the_end_of_a_run(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(engines, "CLOSE_S", 0.1)
        task = Talk(of=NeverCloses)
        answered(task, ThreadOptions(**BASE), count=1)
        assert "2 environments were not closed within 0.1 s after the end of the run" in caplog.text
        assert "2 x NeverCloses.close" in caplog.text
        assert "abandoned; they are in NeverCloses.close" in caplog.text

    def test_attribute_of_another_kind_is_not_called(self, caplog: pytest.LogCaptureFixture) -> None:
        assert len(answered(Talk(of=NoMethod)).finished) == 3
        assert caplog.messages == []


class Raises(Closable):
    def close(self) -> None:
        super().close()
        raise OSError("the browser is gone")


class TestWorkers:
    """Environments in other processes."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options",
        [
            pytest.param(ProcessOptions(**BASE, workers=1), id="process"),
            pytest.param(RayOptions, id="ray"),
        ],
    )
    @pytest.mark.parametrize("behaviour", ["raises", "hangs"])
    def test_environments_are_closed_when_answers_end_and_when_the_engine_does(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: Any, behaviour: str
    ) -> None:
        options = options if isinstance(options, ProcessOptions) else options(**BASE, workers=1)
        engine = built(LoggedTalk(folder=str(tmp_path), behaviour=behaviour), options)
        queue = Queue(groups(2))
        engine.start(queue)
        if behaviour == "hangs":
            wait_for(lambda: len(recorded(tmp_path, "hangs")) == 4)
        else:
            queue.wait_for(2)
            wait_for(lambda: len(recorded(tmp_path, "closed")) == 4)
        engine.close()
        assert len(recorded(tmp_path, "made")) == 4
        assert recorded(tmp_path, "closed") == recorded(tmp_path, "made")
        if behaviour == "raises":
            assert "Logged.close: after the answer to" in caplog.text
            assert "OSError: the browser is gone" in caplog.text


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    never = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        never.wait(0.02)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    "rollout",
    [
        {"use": "inline"},
        {"use": "thread", "workers": 2, "on_sync": "continue"},
        pytest.param({"use": "process", "workers": 2}, marks=pytest.mark.slow),
        pytest.param({"use": "ray", "workers": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value["use"],
)
def test_whole_run_closes_every_environment_that_it_made(tmp_path: Path, rollout: dict[str, Any]) -> None:
    trainer = build_trainer(
        config_from_mapping(
            {
                "task": {"use": "helpers.environments:LoggedTalk", "digits": 1, "folder": str(tmp_path)},
                "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
                "rollout": {**rollout, "n": 2, "max_response_length": 8},
                "trainer": {
                    "total_steps": 2,
                    "train_batch_size": 2,
                    "ppo_mini_batch_size": 2,
                    "num_warmup_batches": 2,
                },
                "run": {"dir": str(tmp_path), "name": "run"},
                "plugins": ["metric_aggregation", "weight_sync", {"use": "validation", "every": 1, "size": 2}],
            }
        )
    )
    assert trainer.fit().status == "completed"
    made = recorded(tmp_path, "made")
    assert len(made) >= 12
    assert recorded(tmp_path, "closed") == made


@pytest.mark.slow
@pytest.mark.parametrize("use", ["inline", "thread", "process"])
def test_interrupted_run_closes_the_environments_whose_steps_hang(tmp_path: Path, use: str) -> None:
    folder = tmp_path / "environments"
    folder.mkdir()
    (tmp_path / "run.yaml").write_text(
        f"""
task: {{use: "helpers.environments:LoggedTalk", digits: 1, folder: {folder}, behaviour: hangs}}
model: {{use: decoder, layers: 1, width: 16, heads: 2}}
rollout: {{use: {use}, n: 2, max_response_length: 24}}
trainer: {{total_steps: 2, train_batch_size: 2, ppo_mini_batch_size: 2}}
plugins: [metric_aggregation, weight_sync]
"""
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "hooktrainer", "fit", "run.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: bool(recorded(folder, "hangs")))
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == 130, output
    assert "another error" not in output
    assert recorded(folder, "closed") == recorded(folder, "made")


class Stepwise:
    """An environment whose step ends when the test allows it."""

    def __init__(self) -> None:
        self.gate, self.closed, self.overlapped, self.busy = threading.Event(), 0, False, False

    def step(self) -> None:
        self.busy = True
        assert self.gate.wait(PATIENCE_S)
        self.busy = False

    def close(self) -> None:
        self.overlapped |= self.busy
        self.closed += 1
        if self.closed > 1:
            raise AssertionError("closed twice")


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "reply", "end", "restart"]), st.integers(0, 3)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=14,
)


def was_cancelled(reply: Future[Any] | None) -> bool:
    """Return whether a reply was cancelled before it began, or while it was running."""
    return reply is not None and (reply.cancelled() or isinstance(reply.exception(0), CancelledError))


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, workers=st.integers(1, 3))
def test_in_any_order_of_events_each_environment_is_closed_once(events: list[tuple[str, int]], workers: int) -> None:
    warnings: list[str] = []
    pool = ScorePool(ScoreOptions(timeout_s=PATIENCE_S, workers=workers))
    environments, made = OpenEnvironments(pool, warnings.append), list[Stepwise]()
    conversations: list[Conversation] = []
    ended_early = False

    def conversation() -> Conversation:
        made.append(Stepwise())
        prompt = Prompt(Example("1+1="), TASK_TOKENS)
        new = Conversation(prompt, made[-1], lambda old: old)  # type: ignore[arg-type]
        environments.add(new)
        conversations.append(new)
        return new

    current = [conversation() for _ in range(4)]
    for event, place in events:
        one = current[place]
        environment: Any = one.environment
        match event:
            case "ask" if one.replying is None:
                one.replying = pool.submit(lambda _, of=environment: of.step(), lambda: "step")
            case "reply":
                environment.gate.set()
            case "end":
                environments.end(one)
            case "restart":
                environments.end(one)
                current[place] = conversation()
            case "close":
                ended_early = True
                pool.close(environments.end_all)
    for environment in made:
        environment.gate.set()
    pool.close(environments.end_all)
    environments.finish(PATIENCE_S)
    assert not pool.join(PATIENCE_S)

    assert [environment.closed for environment in made] == [1] * len(made)
    assert warnings == []
    cut = ended_early or any(was_cancelled(one.replying) for one in conversations)  # by the last `close`
    assert cut or not any(environment.overlapped for environment in made)


TASK_TOKENS: Any = groups(1)[0].prompt.tokens


def test_protocol() -> None:
    assert isinstance(Closable(), SupportsClose)
    assert not isinstance(Countdown(), SupportsClose)
    assert isinstance(built(TASK), Engine)
