"""What goes wrong in a rollout leaves `fit` at once, with its own error, and leaves no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hooktrainer import build_trainer, load_config
from hooktrainer.errors import RolloutError
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
def test_an_error_leaves_fit_within_two_seconds(
    engine: str, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("boom")
    monkeypatch.setattr(SortDigits, "score", fails_on(5, error))
    trainer = build_trainer(config(engine))
    ends: list[str] = []
    monkeypatch.setattr(
        trainer.ports.buffer, "close", lambda close=trainer.ports.buffer.close: (ends.append("x"), close())
    )
    started = time.monotonic()

    with pytest.raises(RolloutError, match="could not be generated") as caught:
        trainer.fit()

    assert caught.value.__cause__ is error
    assert time.monotonic() - started < 2
    assert ends
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_an_error_within_the_budget_is_replaced_and_counted(
    engine: str, config: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SortDigits, "score", fails_on(5, ValueError("boom")))
    trainer = build_trainer(config(engine, "replay.max_failed_groups=1000", "trainer.total_steps=2"))

    assert trainer.fit().step == 2

    ledger = trainer.ports.buffer.ledger
    assert ledger.dropped["failed"].groups >= 1
    assert ledger.sampled.groups == 8
    assert ledger.imbalance == 0
