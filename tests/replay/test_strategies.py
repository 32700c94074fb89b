"""Staleness strategies are pure functions of numbers, and a user can add one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.errors import ConfigError
from hooktrainer.replay.strategies import STRATEGIES, Drop, Pace, Requeue, Strategy, Wait, strategy


@given(st.integers(1, 9), st.integers(1, 20))
def test_each_decides_by_its_threshold(threshold: int, staleness: int) -> None:
    assert Drop(threshold).evicts(staleness) == Requeue(threshold).evicts(staleness) == (staleness > threshold)
    assert Wait(threshold).waits_for(staleness) == (staleness >= threshold)
    assert not Wait(threshold).evicts(staleness)
    assert not Pace(threshold).evicts(staleness)
    assert not Drop(threshold).waits_for(staleness)


def test_only_requeue_sends_a_prompt_again() -> None:
    assert [STRATEGIES[name](1).requeues for name in ("drop", "pace", "requeue", "wait")] == [False, False, True, False]


def test_pace_allows_what_can_be_trained_in_time() -> None:
    budget = Pace(3).budget(version=2, trained=16, outstanding=10, per_step=8)

    assert budget == (3 + 2) * 8 - (16 + 10) == 14
    assert Drop(3).budget(version=2, trained=16, outstanding=10, per_step=8) is None


def test_a_strategy_is_named_or_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_strategies.py").write_text(
        "from hooktrainer.replay.strategies import Strategy\n\n\n"
        "class Fresh(Strategy):\n    def evicts(self, staleness):\n        return staleness > 1\n\n\n"
        "def other(threshold, in_order):\n    return 'no strategy'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert strategy("wait", 2, in_order=True) == Wait(2, in_order=True)
    assert strategy("my_strategies:Fresh", 5).evicts(2)
    with pytest.raises(ConfigError, match=r"known are drop, pace, requeue, wait, .* Did you mean 'drop'"):
        strategy("dorp", 1)
    with pytest.raises(ConfigError, match="'my_strategies:other' makes a str; expected"):
        strategy("my_strategies:other", 1)
    with pytest.raises(ConfigError, match="cannot be made: .*no attribute 'Fersh'"):
        strategy("my_strategies:Fersh", 1)
    with pytest.raises(ConfigError, match="cannot be made: No module named 'my_strategeis'"):
        strategy("my_strategeis:Fresh", 1)


def test_the_base_keeps_everything() -> None:
    base = Strategy()

    assert not base.evicts(99)
    assert not base.waits_for(99)
