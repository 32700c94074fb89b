"""Errors and hangs of rollouts: `fit` raises their error at once, and leaves no thread behind."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.rollouts import SOON_S
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import RolloutError, StarvedError, SyncError
from hooktrainer.rollout.decode_batch import DecodeBatch
from hooktrainer.rollout.engine import warn_of_abandoned
from hooktrainer.tasks.sort_digits import SortDigits

RUN = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: ENGINE, n: 2, max_response_length: 4}
trainer: {total_steps: 50, train_batch_size: 4, ppo_mini_batch_size: 4}
plugins: [metric_aggregation, weight_sync, staleness, log_after_collect]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    monkeypatch.chdir(tmp_path)

    def load(engine: str, *overrides: str) -> object:
        Path("run.yaml").write_text(RUN.replace("ENGINE", engine))
        return load_config("run.yaml", overrides=overrides)

    return load


def fails_on(call: int, error: BaseException) -> Callable[..., float]:
    calls = [0]

    def score(*_: object) -> float:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return 0.5

    return score


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_error_of_a_worker_is_raised_by_fit_soon(
    engine: str, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("boom")
    monkeypatch.setattr(SortDigits, "grade", fails_on(5, error))
    trainer = build_trainer(config(engine))
    ends: list[str] = []
    monkeypatch.setattr(
        trainer.ports.buffer, "close", lambda close=trainer.ports.buffer.close: (ends.append("x"), close())
    )
    started = time.monotonic()

    with pytest.raises(RolloutError, match="could not be generated") as caught:
        trainer.fit()

    assert caught.value.__cause__ is error
    assert time.monotonic() - started < SOON_S
    assert ends
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Return an event on which a rollout blocks; it is set after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_score_that_never_returns_times_out_without_delaying_the_end_of_the_run(
    stuck: threading.Event,
    config: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SortDigits, "grade", lambda *_: stuck.wait() and 0.5)
    limits = ["replay.group_timeout_s=0.2", "replay.sample_timeout_s=0.5"]
    started = time.monotonic()

    with pytest.raises(StarvedError, match=r"starved for 0.5 s: 0 of 4 groups sampleable in step 1"):
        build_trainer(config("thread", *limits)).fit()

    assert time.monotonic() - started < SOON_S
    assert "group 0 ran longer than replay.group_timeout_s = 0.2" in caplog.text
    warned = r"reward-0 (and \d+ more threads? )?did not return within 1.5 s and (is|are) abandoned; .* in test_score"
    assert len(re.findall(warned, caplog.text)) == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "reward-2 did not return within 1.5 s and is abandoned; it is in {}"),
        (2, "reward-2 and 1 more thread did not return within 1.5 s and are abandoned; they are in {}"),
        (20, "reward-2 and 19 more threads did not return within 1.5 s and are abandoned; they are in {}"),
    ],
)
def test_threads_that_hang_in_one_place_are_reported_in_one_line(
    count: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    threads = [threading.Thread(name=f"reward-{place + 2}") for place in reversed(range(count))]
    other = threading.Thread(name="reward-1")
    warn_of_abandoned([*threads, other], lambda thread: "elsewhere" if thread is other else "hang (hang.py, line 3)")
    assert caplog.messages == [
        text.format("hang (hang.py, line 3)"),
        "reward-1 did not return within 1.5 s and is abandoned; it is in elsewhere",
    ]


@pytest.mark.slow
def test_generation_that_never_returns_fails_the_sync_that_waits_for_the_worker(
    stuck: threading.Event, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = threading.Lock()
    decode = DecodeBatch.step
    answers = ["rollout.workers=2", "rollout.n=2", "rollout.max_response_length=64"]
    limits = ["replay.group_timeout_s=0.5", "replay.max_lost_groups=100000", "rollout.sync_timeout_s=0.5"]
    trainer = build_trainer(config("thread", *answers, *limits))

    def step(batch: DecodeBatch) -> object:
        if threading.current_thread().name.startswith("rollout") and first.acquire(blocking=False):
            stuck.wait()
        return decode(batch)

    monkeypatch.setattr(DecodeBatch, "step", step)

    late = r"version (\d+) was not published: waited 0\.5 s .* for rollout-[01] to finish"
    with pytest.raises(SyncError, match=late) as caught:
        trainer.fit()

    assert trainer.ports.engine.version == int(re.search(late, str(caught.value))[1]) - 1


def test_error_of_a_worker_is_raised_by_fit_while_another_worker_hangs(
    stuck: threading.Event, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, first = ValueError("boom"), threading.Lock()

    def score(*_: object) -> float:
        if first.acquire(blocking=False):
            stuck.wait()
        raise error

    monkeypatch.setattr(SortDigits, "grade", score)
    trainer = build_trainer(config("thread", "rollout.workers=2", "rollout.batching=group"))
    started = time.monotonic()

    with pytest.raises(RolloutError) as caught:
        trainer.fit()

    assert caught.value.__cause__ is error
    assert time.monotonic() - started < SOON_S


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_failed_group_within_max_failed_groups_is_replaced_and_counted(
    engine: str, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SortDigits, "grade", fails_on(5, ValueError("boom")))
    trainer = build_trainer(config(engine, "replay.max_failed_groups=1000", "trainer.total_steps=2"))

    assert trainer.fit().step == 2

    ledger = trainer.ports.buffer.ledger
    assert ledger.dropped["failed"].groups >= 1
    assert ledger.sampled.groups == 8
    assert ledger.imbalance == 0
