"""All registered plugins in one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hooktrainer import build_trainer
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.run.registry import KINDS


@pytest.mark.parametrize("backwards", [False, True])
def test_all_registered_plugins_run_together_in_any_order_and_resume(tmp_path: Path, backwards: bool) -> None:
    options = {
        "nonfinite_guard": {"action": "rollback"},
        "loss_spike_guard": {"action": "rollback"},
        "kl_guard": {"limit": 100.0},
        "disk_space": {"keep_free_gb": 0.0},
        "log_after_collect": {"sinks": ["jsonl"]},
        "validation": {"size": 16},
    }

    def fit(steps: int) -> str:
        trainer = build_trainer(
            config_from_mapping(
                {
                    "task": {"use": "sort_digits", "digits": 3},
                    "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
                    "rollout": {"use": "inline", "n": 4, "max_response_length": 4},
                    "algorithm": {"kl_coeff": 0.1},
                    "trainer": {"total_steps": steps, "train_batch_size": 4, "ppo_mini_batch_size": 4},
                    "run": {"dir": str(tmp_path), "name": "run", "resume": "auto"},
                    "plugins": [{"use": name, **options.get(name, {})} for name in registered],
                }
            )
        )
        return trainer.fit().status

    registered = sorted(KINDS["plugins"], reverse=backwards)
    assert {"checkpoint", "nonfinite_guard", "loss_spike_guard", "watchdog"} <= set(registered)
    assert [fit(steps) for steps in (2, 3)] == ["completed", "completed"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
