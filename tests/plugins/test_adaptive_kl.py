"""adaptive_kl on the fake bus, and in a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hooktrainer import build_trainer
from hooktrainer.errors import ConfigError
from hooktrainer.events import IterationEnd
from hooktrainer.metrics import Mean
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.testing import FakeBus, FakeKLControl, check_plugin
from hooktrainer_plugins.adaptive_kl import AdaptiveKL


def config_of(tmp_path: Path, *, kl_coeff: float = 0.1, **options: object) -> dict[str, object]:
    return {
        "task": {"use": "sort_digits", "digits": 3},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "inline", "n": 4, "max_response_length": 5},
        "algorithm": {"kl_coeff": kl_coeff},
        "optim": {"lr": 1e-2},
        "trainer": {"total_steps": 3, "train_batch_size": 8, "ppo_mini_batch_size": 4, "parameter_sync_step": 2},
        "run": {"name": "kl", "dir": str(tmp_path)},
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            {"use": "log_after_collect", "sinks": ["jsonl"]},
            {"use": "adaptive_kl", **options},
        ],
    }


def test_plugin_passes_check_plugin() -> None:
    check_plugin(AdaptiveKL)


@pytest.mark.parametrize("key", ["actor/kl", "actor/reward_kl_penalty"])
@pytest.mark.parametrize(
    ("divergence", "samples", "expected"),
    [
        (0.2, 100, 1.0),  # on the target
        (0.22, 100, 1.0 + 0.1 * 0.1),
        (0.19, 100, 1.0 - 0.05 * 0.1),
        (9.0, 100, 1.0 + 0.2 * 0.1),  # errors count no more than 0.2
        (0.0, 100, 1.0 - 0.2 * 0.1),
        (9.0, 5000, 1.2),  # and an update no more than the horizon
        (math.nan, 100, 1.0),
        (-0.22, 100, 1.0 + 0.1 * 0.1),  # an estimate can be negative
        (-9.0, 100, 1.0 + 0.2 * 0.1),
        (-math.inf, 100, 1.0 + 0.2 * 0.1),
    ],
)
def test_coefficient_follows_the_divergence(key: str, divergence: float, samples: int, expected: float) -> None:
    control = FakeKLControl(kl_coeff=0.5)
    bus = FakeBus(AdaptiveKL(target=0.2, horizon=1000, control=control), provides=["iteration.metrics"])
    bus.fire(IterationEnd, samples=samples, metrics={key: Mean(divergence, 1)})
    assert control.kl_coeff == pytest.approx(0.5 * expected)


def test_plain_numbers_are_accepted_and_a_missing_divergence_changes_nothing() -> None:
    control = FakeKLControl(kl_coeff=0.5)
    bus = FakeBus(AdaptiveKL(target=0.2, horizon=1000, control=control), provides=["iteration.metrics"])
    bus.fire(IterationEnd, samples=100, metrics={"actor/kl_loss": 3.0})  # follows loss_agg_mode
    assert control.kl_coeff == 0.5
    bus.fire(IterationEnd, samples=100, metrics={"actor/kl": 0.24})
    assert control.kl_coeff == pytest.approx(0.5 * 1.02)


def test_coefficient_of_the_learner_changes_in_a_run(tmp_path: Path) -> None:
    trainer = build_trainer(config_from_mapping(config_of(tmp_path, target=1e-6, horizon=16)))
    trainer.fit()
    rows = [json.loads(line) for line in (tmp_path / "kl" / "metrics.jsonl").read_text().splitlines()]
    # The first update is on the reference: 0.1 x 0.8. All others are above the target: x 1.2.
    assert [row["actor/kl_coef"] for row in rows] == pytest.approx([0.08, 0.08 * 1.2**2, 0.08 * 1.2**4])


def test_kl_coeff_of_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[3\]: .*algorithm.kl_coeff is 0"):
        composition_of(config_from_mapping(config_of(tmp_path, kl_coeff=0.0)))
