"""validation on the fake bus."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.ports import Prompt
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


class FewPrompts(FakePrompts):
    """A task with a few held-out prompts."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def heldout(self, count: int) -> Sequence[Prompt]:
        return super().heldout(min(count, self.count))


@pytest.mark.parametrize(("held_out", "size", "validated"), [(3, None, 3), (300, None, 256), (300, 260, 260)])
def test_all_held_out_prompts_up_to_256_are_answered_unless_a_size_is_set(
    held_out: int, size: int | None, validated: int
) -> None:
    samples = FakeLatestSamples()
    ports = {"engine": FakeEngine(), "prompts": FewPrompts(held_out), "clock": ManualClock(), "samples": samples}
    bus = FakeBus(Validation(size=size, every=1, **ports), provides=["metrics.row", "weights.published"])
    bus.fire(FitStart)
    bus.fire(StepEnd, step=1)
    assert len(samples.validated) == validated


@pytest.mark.parametrize(
    ("held_out", "size", "message"), [(3, 4, "size is 4, and the task has 3"), (0, None, "has no")]
)
def test_a_lack_of_held_out_prompts_is_refused(held_out: int, size: int | None, message: str) -> None:
    ports = {"engine": FakeEngine(), "prompts": FewPrompts(held_out), "clock": ManualClock()}
    bus = FakeBus(
        Validation(size=size, samples=FakeLatestSamples(), **ports), provides=["metrics.row", "weights.published"]
    )
    with pytest.raises(ConfigError, match=message):
        bus.fire(FitStart)
