"""Between the YAML and the run, each plugin is constructed once, and the plan is built once."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from helpers.config_yaml import BASE, written
from hooktrainer import Plugin, build_trainer, load_config
from hooktrainer.bus.plan import Plan
from hooktrainer.cli import main
from hooktrainer.config import Config
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping

CALLS: Counter[str] = Counter()


@attrs.define(kw_only=True)
class Counted(Plugin):
    """Counts its constructions."""

    every: int = 1

    def __attrs_post_init__(self) -> None:
        CALLS["plugins"] += 1


ONCE = {"plugins": 1, "plans": 1}


@pytest.fixture(autouse=True)
def _count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build = Plan.build

    def counted(*args: object, **kwargs: object) -> Plan:
        CALLS["plans"] += 1
        return build(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "build", counted)
    CALLS.clear()
    yield
    CALLS.clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of one small step, with the counted plugin."""
    monkeypatch.chdir(tmp_path)
    small = "trainer: {total_steps: 1, train_batch_size: 2, ppo_mini_batch_size: 2}\n"
    text = BASE.partition("trainer:")[0] + small
    return written(tmp_path, text + f"plugins: [metric_aggregation, weight_sync, '{__name__}:Counted']\n")


def plugins_of(config: Config) -> list[Plugin]:
    return [entry.plugin for entry in composition_of(config).plan.plugins]


def test_load_config_and_build_trainer_compose_once(path: Path) -> None:
    trainer = build_trainer(load_config(path))
    assert CALLS == ONCE
    trainer.fit()
    assert CALLS == ONCE


def test_config_from_mapping_composes_once() -> None:
    named = {"task": "sort_digits", "model": "decoder", "rollout": "inline", "plugins": [f"{__name__}:Counted"]}
    sizes = {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2}
    composition_of(config_from_mapping({**named, "trainer": sizes}))
    assert CALLS == ONCE


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_commands_compose_once(command: str, path: Path) -> None:
    assert main([command, str(path)]) == 0
    assert CALLS == ONCE


def test_second_trainer_has_separate_plugins(path: Path) -> None:
    config = load_config(path)
    plugins = [*plugins_of(config), *plugins_of(config)]
    assert CALLS == {"plugins": 2, "plans": 2}
    assert len(set(map(id, plugins))) == len(plugins) == 6


def test_evolved_configuration_is_composed_again(path: Path) -> None:
    config = load_config(path)
    evolved = attrs.evolve(config, seed=3)
    assert composition_of(evolved).config.seed == 3
    assert CALLS == {"plugins": 2, "plans": 2}
    composition_of(config)
    assert CALLS == {"plugins": 2, "plans": 2}


def test_copies_of_a_configuration_share_no_plugin(path: Path) -> None:
    config = load_config(path)
    copies = [config, copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))]
    assert all(each == config for each in copies)
    plugins = [plugin for each in copies for plugin in plugins_of(each)]
    assert len(set(map(id, plugins))) == len(plugins) == 12


def test_an_option_that_is_changed_after_loading_takes_effect(path: Path) -> None:
    config = load_config(path)
    (entry,) = [entry for entry in config.plugins if entry.name == "counted"]
    entry.options["every"] = 3  # type: ignore[index]

    plugins = composition_of(config).plan.plugins

    assert [placed.plugin.every for placed in plugins if isinstance(placed.plugin, Counted)] == [3]


def test_a_shallow_copy_with_another_seed_is_composed_from_that_seed(path: Path) -> None:
    config = copy.copy(load_config(path))
    object.__setattr__(config, "seed", 77)

    assert composition_of(config).config.seed == 77


def test_composition_used_for_a_second_run_is_refused(path: Path) -> None:
    composition = composition_of(load_config(path))
    build_trainer(composition).fit()

    with pytest.raises(RuntimeError, match="a composition is for one run"):
        build_trainer(composition)
