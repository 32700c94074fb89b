"""nonfinite_guard on the fake bus, and on the real learner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.learners import MinimalLearner
from hooktrainer import Trainer, build_trainer
from hooktrainer.errors import ConfigError, NonFiniteError
from hooktrainer.events import FitStart, IterationEnd, StepEnd, StepStart
from hooktrainer.metrics import Sum
from hooktrainer.ports import Learner
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.testing import FakeBus, FakeLearner, FakeRunState, check_plugin
from hooktrainer_plugins.nonfinite_guard import NonfiniteGuard


def test_plugin_passes_check_plugin() -> None:
    check_plugin(NonfiniteGuard)


def guarded(**options: object) -> tuple[FakeBus, NonfiniteGuard]:
    guard = NonfiniteGuard(learner=FakeLearner(), run=FakeRunState(state={"weights": 0}), **options)
    bus = FakeBus(guard, provides=["metrics.row"])
    bus.fire(FitStart)
    return bus, guard


def update(bus: FakeBus, step: int, *, skipped: bool, iteration: int = 0) -> None:
    bus.fire(IterationEnd, step=step, iteration=iteration, metrics={"actor/skipped_updates": Sum(skipped)})


def test_run_continues_up_to_the_limit_of_consecutive_skips() -> None:
    bus, guard = guarded(limit=2)
    for step, skipped in enumerate([True, True, False, True, True], start=1):
        update(bus, step, skipped=skipped)
    assert guard.learner.skips_nonfinite
    with pytest.raises(NonFiniteError, match=r"update 4 of step 6 .* 3 in a row, 5 in all; .* allows 2 in a row"):
        update(bus, 6, skipped=True, iteration=3)


def test_state_dict_restores_the_counts() -> None:
    bus, guard = guarded(limit=2)
    update(bus, 1, skipped=True)
    update(bus, 2, skipped=True)
    bus, other = guarded(limit=2)
    other.load_state_dict(guard.state_dict())

    with pytest.raises(NonFiniteError, match="3 in a row, 3 in all"):
        update(bus, 3, skipped=True)


def test_action_stop_stops_the_run_with_the_reason() -> None:
    bus, _ = guarded(action="stop")
    update(bus, 7, skipped=False)
    assert bus.control.reason is None
    update(bus, 7, skipped=True, iteration=1)

    assert bus.control.reason == "update 2 of step 7 was not finite and was skipped (1 in a row, 1 in all)"


def test_action_rollback_restores_the_last_complete_step_and_counts_it() -> None:
    bus, guard = guarded(action="rollback")
    for step in (1, 2, 3):
        bus.fire(StepStart, step=step)
        guard.run.state["weights"] = step
        update(bus, step, skipped=step == 3)
    bus.fire(StepEnd, step=3)

    assert guard.run.state["weights"] == 2
    assert guard.run.learner_restores == [3]
    assert bus.row["actor/rollbacks"] == 1


def test_snapshot_of_the_guard_does_not_replace_the_snapshot_of_the_step() -> None:
    bus, guard = guarded(action="rollback")
    bus.fire(StepStart, step=1)

    assert guard.run.latest is None
    assert guard.run.captured == []


@pytest.mark.parametrize("latest", [None, 4])
def test_rollback_restores_the_same_weights_after_any_earlier_capture(latest: int | None) -> None:
    bus, guard = guarded(action="rollback")
    if latest is not None:
        guard.run.capture(latest)
    guard.run.state["weights"] = 5
    bus.fire(StepStart, step=6)
    guard.run.state["weights"] = 6
    update(bus, 6, skipped=True)

    assert guard.run.state["weights"] == 5


def test_learner_without_skips_nonfinite_is_refused_at_fit_start() -> None:
    guard = NonfiniteGuard(learner=MinimalLearner(), run=FakeRunState())

    assert isinstance(guard.learner, Learner)
    expected = (
        r"MinimalLearner has no attribute skips_nonfinite.* Add `skips_nonfinite = False`.*ports\.SupportsSkipping"
    )
    with pytest.raises(ConfigError, match=expected):
        FakeBus(guard, provides=["metrics.row"]).fire(FitStart)


class ReadOnlyLearner(MinimalLearner):
    """A learner whose attribute cannot be set."""

    @property
    def skips_nonfinite(self) -> bool:
        return False


def test_learner_whose_skips_nonfinite_is_read_only_is_refused_at_fit_start() -> None:
    guard = NonfiniteGuard(learner=ReadOnlyLearner(), run=FakeRunState())

    with pytest.raises(ConfigError, match=r"ReadOnlyLearner\.skips_nonfinite cannot be set.*a property with a setter"):
        FakeBus(guard, provides=["metrics.row"]).fire(FitStart)


class NonFiniteInSomeUpdates:
    """An advantage estimator that returns NaN in some updates, and records the weights before each update."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad
        self.trainer: Trainer | None = None
        self.before: list[Mapping[str, Tensor]] = []

    def __call__(self, rewards: Tensor) -> Tensor:
        self.before.append({name: tensor.clone() for name, tensor in self.trainer.ports.learner.weights().items()})
        centred = rewards - rewards.mean()
        return torch.full_like(rewards, float("nan")) if len(self.before) in self._bad else centred


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]]:
    def make(
        *bad: int,
        steps: int = 3,
        optim: Mapping[str, object] | None = None,
        place: Mapping[str, object] | None = None,
        extra: Sequence[object] = (),
        **options: object,
    ) -> tuple[Trainer, NonFiniteInSomeUpdates]:
        estimator = NonFiniteInSomeUpdates(*bad)
        monkeypatch.setattr("hooktrainer.algorithms.advantages.grpo", estimator)
        guard = {"use": "hooktrainer_plugins.nonfinite_guard:NonfiniteGuard", **options}
        sink = {"use": "log_after_collect", "sinks": ["jsonl"]}
        estimator.trainer = build_trainer(
            config_from_mapping(
                {
                    "task": {"use": "sort_digits", "digits": 3},
                    "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
                    "rollout": {"use": "inline", "n": 4, "max_response_length": 4},
                    "algorithm": {"entropy_coeff": 0.1},
                    "optim": dict(optim or {}),
                    "trainer": {
                        "total_steps": steps,
                        "train_batch_size": 8,
                        "ppo_mini_batch_size": 4,
                        "parameter_sync_step": 2,
                    },
                    "run": {"dir": str(tmp_path / "runs"), **(place or {})},
                    "plugins": ["metric_aggregation", "weight_sync", guard, sink, *extra],
                }
            )
        )
        return estimator.trainer, estimator

    return make


def rows(trainer: Trainer, directory: Path) -> list[dict[str, float]]:
    (path,) = directory.glob("runs/*/metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_skipped_update_leaves_the_weights_unchanged_and_is_counted_in_its_row(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]], tmp_path: Path
) -> None:
    trainer, seen = run(3)  # the first of step 2

    assert trainer.fit().step == 3

    changed = [not same(one, other) for one, other in zip(seen.before, seen.before[1:], strict=False)]
    assert changed == [True, True, False, True, True]
    assert [row["actor/skipped_updates"] for row in rows(trainer, tmp_path)] == [0, 1, 0]
    assert not any(key.startswith("nan/") for row in rows(trainer, tmp_path) for key in row)


def test_run_continues_from_the_last_step_after_a_rollback(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]], tmp_path: Path
) -> None:
    trainer, seen = run(4, action="rollback")  # the second of step 2, after one good update

    assert trainer.fit().step == 3

    start_of_step_2, before_it, after_it = seen.before[2], seen.before[3], seen.before[4]
    assert not same(start_of_step_2, before_it)
    assert same(start_of_step_2, after_it)
    assert not same(after_it, seen.before[5])
    assert [row.get("actor/rollbacks", 0) for row in rows(trainer, tmp_path)] == [0, 1, 0]
    assert trainer.ports.learner.state_dict()["updates"] == 2 + 2


def test_step_that_is_rolled_back_reports_its_own_learning_rate(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]], tmp_path: Path
) -> None:
    by_steps = {"lr": 1.0, "lr_unit": "step", "lr_decay_start": 0, "lr_decay": 4, "min_lr_ratio": 0, "grad_clip": 1e-9}
    trainer, _ = run(3, action="rollback", optim=by_steps)  # the first of step 2

    trainer.fit()

    assert [row["actor/lr"] for row in rows(trainer, tmp_path)] == [1.0, 0.75, 0.5]
    assert trainer.ports.learner.state_dict()["step"] == 3


@pytest.mark.parametrize("in_memory", [True, False])
def test_rollback_gives_the_same_weights_in_a_resumed_run(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]], in_memory: bool
) -> None:
    checkpoint = {"use": "checkpoint", "every": 1, "in_memory": in_memory}
    names = {"place": {"name": "whole"}, "extra": [checkpoint], "action": "rollback"}
    whole, _ = run(6, steps=4, **names)  # the second of step 3
    whole.fit()

    broken = {**names, "place": {"name": "broken", "resume": "auto"}}
    run(steps=2, **broken)[0].fit()
    again, seen = run(2, steps=4, **broken)
    again.fit()

    assert len(seen.before) == 4
    assert same(whole.ports.learner.weights(), again.ports.learner.weights())
    assert whole.ports.learner.state_dict()["updates"] == again.ports.learner.state_dict()["updates"] == 4 + 2


def test_action_stop_completes_the_step(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]], tmp_path: Path
) -> None:
    trainer, _ = run(3, action="stop")
    result = trainer.fit()

    assert (result.status, result.step) == ("stopped", 2)
    assert result.reason == "update 1 of step 2 was not finite and was skipped (1 in a row, 1 in all)"
    assert rows(trainer, tmp_path)[-1]["training/partial_iterations"] == 1


def test_more_consecutive_skips_than_the_limit_fail_the_run_with_the_counts(
    run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]],
) -> None:
    trainer, _ = run(2, 3, 4, 5, 6, limit=2)

    with pytest.raises(NonFiniteError, match=r"update 2 of step 2 .*: 3 in a row, 3 in all; .* allows 2"):
        trainer.fit()


def test_learner_raises_without_the_guard(run: Callable[..., tuple[Trainer, NonFiniteInSomeUpdates]]) -> None:
    trainer, seen = run(1, enabled=False)

    with pytest.raises(NonFiniteError, match="actor/pg_loss is nan: no update was made"):
        trainer.fit()
    assert same(seen.before[0], trainer.ports.learner.weights())
