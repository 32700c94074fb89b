"""reward_watch on the fake bus."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooktrainer.events import IterationEnd, StepEnd
from hooktrainer.metrics import Counts, Mean
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.reward_watch import CORRELATION, LENGTH, RewardWatch

SCORE = "critic/score/mean"
RISING = [(0.1, 10.0), (0.2, 12.0), (0.3, 14.0), (0.4, 16.0)]
FLAT = [(0.4, 16.0), (0.4, 16.0), (0.4, 16.0), (0.4, 16.0)]


class Watched:
    def __init__(self, **options: object) -> None:
        self.plugin = RewardWatch(**{"window": 4, **options})
        self.bus = FakeBus(self.plugin, provides=["metrics.row"])
        self.step = 0

    def see(self, *pairs: tuple[float, float]) -> list[float | None]:
        """Return what each step reported; a pair is the reward and the length of a step of one update."""
        return [self.step_of([({SCORE: Mean(reward, 1), LENGTH: Mean(length, 1)}, 1)]) for reward, length in pairs]

    def step_of(self, updates: Sequence[tuple[dict[str, object], int]], *, last: bool = False) -> float | None:
        self.step += 1
        for iteration, (metrics, samples) in enumerate(updates):
            self.bus.fire(IterationEnd, step=self.step, iteration=iteration, metrics=metrics, samples=samples)
        self.bus.fire(StepEnd, step=self.step, last=last)
        return self.bus.row.get(CORRELATION)


def warned(caplog: pytest.LogCaptureFixture) -> int:
    found = len(caplog.records)
    caplog.clear()
    return found


def test_plugin_passes_check_plugin() -> None:
    check_plugin(RewardWatch)


def test_reward_and_length_that_rise_together_are_a_warning_with_figures(caplog: pytest.LogCaptureFixture) -> None:
    assert Watched().see(*RISING) == [None, None, None, pytest.approx(1.0)]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "reward and length move together: their correlation over the last 4 steps is 1.00 in step 4, critic/score/mean "
        "from 0.15 to 0.35, response_length/mean from 11 to 15 (means of both halves). Read answers, as the plugin "
        "`samples` writes them, to see whether they are better or only of another length"
    )


def test_a_length_that_falls_while_the_reward_rises_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert Watched().see((1, 8), (2, 6), (3, 4), (4, 2))[-1] == pytest.approx(-1.0)
    assert "reward and length move in opposite directions: their correlation over the last 4 steps is -1.00" in (
        caplog.text
    )


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 50)), min_size=5, max_size=9), st.integers(4, 5))
def test_the_metric_is_the_correlation_over_the_last_steps(pairs: list[tuple[int, int]], window: int) -> None:
    rewards, lengths = np.array(pairs[-window:], float).T
    spread = rewards.std() * lengths.std()

    found = Watched(window=window).see(*pairs)[-1]

    if spread == 0:
        assert found is None
    else:
        covariance = (rewards * lengths).mean() - rewards.mean() * lengths.mean()
        assert found == pytest.approx(covariance / spread, abs=1e-9)


@pytest.mark.parametrize(
    ("pairs", "options", "warnings_"),
    [
        ([(1, 1), (2, 3), (3, 2), (4, 4)], {}, 0),  # correlation 0.8
        ([(1, 1), (2, 3), (3, 2), (4, 4)], {"threshold": 0.79}, 1),
        ([(0.1, 100), (0.2, 101), (0.3, 102), (0.4, 103)], {}, 0),  # the length changes by 2 %
        ([(0.1, 100), (0.2, 101), (0.3, 102), (0.4, 103)], {"min_change": 0.019}, 1),
        ([(100, 1), (101, 2), (102, 3), (103, 4)], {}, 0),  # the reward does
        ([(0, 1), (0, 2), (1, 4), (1, 5)], {}, 1),  # from 0
        ([(-4, 1), (-3, 2), (3, 8), (4, 9)], {"min_change": 1.9}, 0),  # the reward changes by 2, the length by 0.8
        ([(-4, 1), (-3, 2), (3, 8), (4, 9)], {"min_change": 0.8}, 1),
        ([(1, 1), (2, 2), (9, 9), (3, 3), (4, 4)], {"window": 5, "min_change": 0.56}, 1),  # 1.5 to 3.5
        ([(1, 1), (2, 2), (9, 9), (3, 3), (4, 4)], {"window": 5, "min_change": 0.58}, 0),
    ],
)
def test_correlation_and_changes_must_all_be_large(
    pairs: list[tuple[float, float]], options: dict[str, float], warnings_: int, caplog: pytest.LogCaptureFixture
) -> None:
    Watched(**options).see(*pairs)

    assert warned(caplog) == warnings_


def test_an_episode_is_one_warning_and_ends_after_a_window_without_cause(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.see(*RISING, (0.5, 18.0), (0.6, 20.0))
    assert warned(caplog) == 1

    watched.see((0.1, 20.0), *RISING)  # an outlier, which is in the window for four steps
    assert warned(caplog) == 0

    watched.see(*FLAT, *FLAT)
    assert warned(caplog) == 0
    watched.see((0.8, 32.0))
    assert warned(caplog) == 1


def test_a_step_has_the_mean_over_the_samples_of_its_updates(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.see(*RISING[:3])
    updates = [({SCORE: 0.1, LENGTH: Mean(30.0, 3)}, 3), ({SCORE: 1.3, LENGTH: Mean(34.0, 1)}, 1)]

    assert watched.step_of(updates) == pytest.approx(1.0)  # 0.4 and 16
    assert "from 0.15 to 0.35, response_length/mean from 11 to 15" in caplog.text


def test_constant_reward_or_length_has_no_correlation_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(action="error"):
        assert Watched().see(*[(reward, 0.1) for reward, _ in RISING]) == [None] * 4
        assert Watched().see(*[(0.1, length) for _, length in RISING]) == [None] * 4
    assert warned(caplog) == 0


@pytest.mark.parametrize("scale", [1e-300, -1e-300, 1e308])
def test_values_of_extreme_size_have_a_correlation(scale: float) -> None:
    with warnings.catch_warnings(action="error"):
        assert Watched().see(*[(reward * scale, length) for reward, length in RISING])[-1] == pytest.approx(
            math.copysign(1.0, scale)
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_steps_without_a_finite_reward_are_left_out(value: float, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    assert watched.see(*RISING[:3], (value, 15.0), RISING[3])[-2:] == [None, pytest.approx(1.0)]
    assert watched.step_of([]) is None
    assert warned(caplog) == 1


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_window_and_episode_continue_after_a_resume(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [*RISING, (0.5, 18.0), (0.7, 20.0)]
    before, resumed = Watched(), Watched()
    reported = before.see(*pairs[:steps])
    resumed.plugin.load_state_dict(before.plugin.state_dict())

    assert reported + resumed.see(*pairs[steps:]) == Watched().see(*pairs)
    assert warned(caplog) == 2  # once in the resumed run, and once in the other


def test_a_smaller_window_after_a_resume_uses_the_last_steps() -> None:
    before, resumed = Watched(window=6), Watched(window=4)
    before.see((9, 1), (9, 2), *RISING[:3])
    resumed.plugin.load_state_dict(before.plugin.state_dict())

    assert resumed.see(RISING[3]) == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("values", "said"), [({}, 1), ({"reward/a/mean": Counts({1: 2})}, 1), ({"reward/a/mean": 1}, 0)]
)
def test_a_metric_that_no_update_reports_is_logged_once(
    values: dict[str, object], said: int, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(metric="reward/a/mean")
    for _ in range(6):
        watched.step_of([({LENGTH: 3.0, **values}, 1)])

    expected = (
        "reward_watch has no effect: no update up to step 4 reported its metric 'reward/a/mean' and "
        "'response_length/mean'"
    )
    assert [record.getMessage() for record in caplog.records] == [expected] * said


def test_a_missing_metric_is_logged_at_the_end_of_a_short_run(caplog: pytest.LogCaptureFixture) -> None:
    Watched(metric="reward/a/mean").step_of([({LENGTH: 3.0}, 1)], last=True)

    assert "no update up to step 1 reported its metric 'reward/a/mean'" in caplog.text


@pytest.mark.parametrize(
    "options", [{"window": 3}, {"window": 4.5}, {"threshold": 0}, {"threshold": 1}, {"min_change": -0.1}]
)
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        RewardWatch(**options)
