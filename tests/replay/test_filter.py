"""An error of a replay filter is raised by `fit()` with every engine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hooktrainer import build_trainer
from hooktrainer.ports import Group
from hooktrainer.run.loading import config_from_mapping


@pytest.mark.parametrize(
    "rollout",
    [{"use": "inline"}, {"use": "thread", "workers": 1}, {"use": "thread", "workers": 3}],
    ids=["inline", "one thread", "three threads"],
)
def test_error_of_a_filter_is_raised_by_fit_and_no_group_stays_running(
    rollout: dict[str, object], tmp_path: Path
) -> None:
    judged: list[str] = []

    def judge(group: Group) -> bool:
        judged.append(threading.current_thread().name)
        if len(judged) == 1:
            raise ZeroDivisionError(f"no share of {group.number}")
        return True

    config = {
        "task": "sort_digits",
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {**rollout, "n": 2, "max_response_length": 4},
        "trainer": {"total_steps": 3, "train_batch_size": 8, "ppo_mini_batch_size": 8},
        "replay": {"max_failed_groups": 100, "max_lost_groups": 100, "sample_timeout_s": 60},
        "run": {"name": "filtered", "dir": str(tmp_path)},
        "plugins": ["metric_aggregation", "weight_sync"],
    }
    trainer = build_trainer(config_from_mapping(config))
    buffer = trainer.ports.buffer
    buffer.set_filter(judge)

    with pytest.raises(ZeroDivisionError, match="no share of") as caught:
        trainer.fit()

    assert any(entry.name == "judge" for entry in caught.traceback)
    assert "raised by the replay filter for group" in caught.value.__notes__[0]
    assert buffer.take_metrics()["ledger/imbalance"].value == 0  # type: ignore[attr-defined]
    if rollout["use"] == "inline":
        assert buffer.take_metrics()["replay/running"].value == 0  # type: ignore[attr-defined]
    else:
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rollout-")]
