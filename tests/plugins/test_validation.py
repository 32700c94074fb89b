"""validation on the fake bus."""

from __future__ import annotations

import pytest

from hooktrainer.events import FitStart, StepEnd
from hooktrainer.testing import FakeBus, FakeEngine, FakeLatestSamples, FakePrompts, ManualClock, check_plugin
from hooktrainer_plugins.validation import Validation


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Validation)


@pytest.mark.parametrize(
    ("score", "exact"),
    [(0.75, 0.0), (1.0, 1.0), (sum([0.1] * 10), 1.0), (sum([0.05] * 20), 1.0), (sum([1 / 6] * 6), 1.0), (0.999, 0.0)],
)
def test_mean_score_and_exact_match_are_both_reported(score: float, exact: float) -> None:
    fakes = {"engine": FakeEngine(score=score), "prompts": FakePrompts(), "clock": ManualClock()}
    samples = FakeLatestSamples()
    validation = Validation(every=2, size=8, samples=samples, **fakes)
    bus = FakeBus(validation, provides=["metrics.row", "weights.published"])
    bus.fire(FitStart)
    rows = []
    for step in (1, 2, 3):
        bus.fire(StepEnd, step=step, last=step == 3)
        rows.append((bus.row.get("val/score/mean"), bus.row.get("val/exact_match/mean")))

    assert rows == [(None, None), (score, exact), (score, exact)]
    assert [answer.score for _, answer in samples.validated] == [score] * 16
