"""The learning rate over updates or steps."""

from __future__ import annotations

import math

import pytest

from helpers.learners import GROUPS, build, learner
from hooktrainer.errors import ConfigError
from hooktrainer.learner.options import OptimOptions
from hooktrainer.learner.schedule import Schedule
from hooktrainer.run.loading import config_from_mapping


def rates(optim: OptimOptions, count: int) -> list[float]:
    return [optim.lr * optim.schedule.factor(unit) for unit in range(1, count + 1)]


def test_linear_decay_goes_from_the_full_rate_to_min_lr_ratio() -> None:
    optim = OptimOptions(lr=1.0, lr_decay_start=0, lr_decay=10, min_lr_ratio=0.0)
    assert rates(optim, 11) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])


def test_schedule_has_warm_up_plateau_decay_and_minimum() -> None:
    optim = OptimOptions(lr=1.0, lr_warmup=2, lr_decay_start=3, lr_decay=4, min_lr_ratio=0.2)
    assert rates(optim, 10) == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_cosine_decay_follows_half_a_period() -> None:
    optim = OptimOptions(lr=2.0, lr_decay_start=1, lr_decay=4, lr_decay_shape="cosine", min_lr_ratio=0.5)
    part = (1 - math.sqrt(0.5)) / 2
    assert rates(optim, 7) == pytest.approx([2.0, 2.0, 2.0 - part, 1.5, 1.0 + part, 1.0, 1.0])


def test_schedule_without_options_is_constant() -> None:
    assert {Schedule().factor(unit) for unit in (1, 2, 10**9)} == {1.0}


@pytest.mark.parametrize(
    ("unit", "horizon", "expected"),
    [
        ("update", 8, [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("step", 2, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_schedule_unit_is_an_update_or_a_step(unit: str, horizon: int, expected: list[float]) -> None:
    made = learner(
        build(), lr=1.0, lr_unit=unit, lr_decay_start=0, lr_decay=horizon, min_lr_ratio=0.0, iterations_per_step=4
    )
    found = []
    for step in (1, 2):
        made.start_step(step)
        found += [made.update(GROUPS)["actor/lr"].value for _ in range(4)]

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("unit", "horizon"), [("update", 8), ("step", 2)])
def test_the_schedule_resumes_at_its_unit(unit: str, horizon: int) -> None:
    def new() -> object:
        return learner(
            build(), lr=1.0, lr_unit=unit, lr_decay_start=0, lr_decay=horizon, min_lr_ratio=0.0, iterations_per_step=4
        )

    first = new()
    first.start_step(1)
    for _ in range(4):
        first.update(GROUPS)
    second = new()
    second.load_state_dict(first.state_dict())
    for made in (first, second):
        made.start_step(2)

    unbroken, resumed = ([made.update(GROUPS)["actor/lr"].value for _ in range(4)] for made in (first, second))
    assert resumed == unbroken
    assert resumed[0] == 0.5


def test_every_epoch_of_a_mini_batch_is_an_update() -> None:
    made = learner(build(), lr=1.0, lr_decay_start=0, lr_decay=10, min_lr_ratio=0.0, ppo_epochs=2)
    assert [made.update(GROUPS)["actor/lr"].value for _ in range(3)] == pytest.approx([0.9, 0.7, 0.5])


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"lr_unit": "epoch"}, "optim.lr_unit: expected update or step, found 'epoch'"),
        ({"lr_decay": 10}, "optim.lr_decay: 10 has no effect without lr_decay_start"),
        ({"lr_decay_shape": "cosine"}, "optim.lr_decay_shape: cosine has no effect without lr_decay_start"),
        ({"min_lr_ratio": 0.5}, "optim.min_lr_ratio: 0.5 has no effect without lr_decay_start"),
        ({"lr": math.inf}, "optim.lr: "),
        ({"lr_warmup_updates": 3}, "optim.lr_warmup_updates: unknown key.* Did you mean 'lr_warmup'"),
        ({"micro_batch_size": 2, "micro_batch_tokens": 9}, "optim.micro_batch_tokens: .*leave one of them out"),
    ],
)
def test_invalid_options_are_refused_with_their_address(keys: dict[str, object], fault: str) -> None:
    sizes = {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1}
    named = {"task": "sort_digits", "model": "decoder", "rollout": "inline", "plugins": ["weight_sync"]}
    with pytest.raises(ConfigError, match=fault):
        config_from_mapping({**named, "trainer": sizes, "optim": {"lr": 1e-3, **keys}})
