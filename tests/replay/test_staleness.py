"""Staleness strategies, built-in and user-defined."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.errors import ConfigError
from hooktrainer.ports import STRATEGIES, Strategy
from hooktrainer.replay.staleness import Drop, Pace, Requeue, Wait
from hooktrainer.run.loading import config_from_mapping, load_config
from hooktrainer_plugins.staleness import Staleness

RUN = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 8, "ppo_mini_batch_size": 8},
}


@given(st.integers(1, 9), st.integers(1, 20))
def test_strategies_decide_by_their_threshold(threshold: int, staleness: int) -> None:
    assert Drop(threshold).evicts(staleness) == Requeue(threshold).evicts(staleness) == (staleness > threshold)
    assert Wait(threshold).waits_for(staleness) == (staleness >= threshold)
    assert not Wait(threshold).evicts(staleness)
    assert not Pace(threshold).evicts(staleness)
    assert not Drop(threshold).waits_for(staleness)


def test_only_requeue_dispatches_a_prompt_again() -> None:
    requeues = {name: STRATEGIES.resolve(name)(1).requeues for name in STRATEGIES}

    assert requeues == {"drop": False, "pace": False, "requeue": True, "wait": False}


def test_pace_budget_covers_the_groups_that_can_be_trained_in_time() -> None:
    budget = Pace(3).budget(version=2, trained=16, outstanding=10, per_step=8)

    assert budget == (3 + 2) * 8 - (16 + 10) == 14
    assert Drop(3).budget(version=2, trained=16, outstanding=10, per_step=8) is None


MINE = """
import attrs
from hooktrainer.ports import Strategy


class Fresh(Strategy):
    def evicts(self, staleness):
        return staleness > 1


@attrs.frozen(kw_only=True)
class NeedsMore(Strategy):
    size: int


class Other:
    pass


def function(threshold, in_order):
    return Fresh(threshold, in_order)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a module with strategies, and remove it from `sys.modules` afterwards."""
    (tmp_path / "my_strategies.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if "my_strategies" in name]:
        del sys.modules[name]


def test_strategy_is_resolved_by_name_module_or_file(folder: Path) -> None:
    assert STRATEGIES.resolve("wait")(2, True) == Wait(2, in_order=True)
    assert STRATEGIES.resolve("my_strategies:Fresh")(5).evicts(2)
    assert STRATEGIES.resolve(f"{folder}/my_strategies.py:Fresh")(5).evicts(2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dorp", r"no strategy has the name 'dorp'; there are drop, pace, requeue, wait, .* Did you mean 'drop'"),
        ("my_strategies:Other", r"not a strategy: it must be a subclass of hooktrainer\.ports\.Strategy"),
        ("my_strategies:function", "my_strategies has no class 'function', but an object of type function"),
        ("my_strategies:Fersh", "my_strategies has no class 'Fersh'. Did you mean 'Fresh'"),
        ("my_strategeis:Fresh", "there is no module 'my_strategeis'"),
        ("my_strategies:NeedsMore", r"a strategy is constructed as NeedsMore\(threshold, in_order\), but .* 'size'"),
        ("wait.py", "'wait.py' is a file; append the name of the class"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_unknown_strategy_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        STRATEGIES.resolve(name)
    with pytest.raises(ConfigError, match=message):
        Staleness(max_off_policy_strategy=name)


@pytest.mark.usefixtures("folder")
def test_a_fault_of_the_strategy_has_the_address_of_its_option() -> None:
    plugins = ["weight_sync", {"use": "staleness", "max_off_policy_strategy": "dorp"}]
    with pytest.raises(ConfigError) as caught:
        config_from_mapping({**RUN, "plugins": plugins})
    assert [fault.address for fault in caught.value.faults] == ["plugins[1].max_off_policy_strategy"]


def test_a_strategy_in_a_file_is_relative_to_the_yaml_that_names_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    (folder / "more").mkdir()
    (folder / "more" / "mine.py").write_text(MINE)
    staleness = {"use": "staleness", "max_off_policy_strategy": "mine.py:Fresh"}
    (folder / "more" / "plugins.yaml").write_text(yaml.safe_dump({"plugins": ["weight_sync", staleness]}))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    config = load_config(folder / "run.yaml", folder / "more" / "plugins.yaml")

    assert config.plugins[1].options == {"max_off_policy_strategy": f"{folder}/more/mine.py:Fresh"}


def test_base_strategy_evicts_nothing_and_never_waits() -> None:
    base = Strategy()

    assert not base.evicts(99)
    assert not base.waits_for(99)
