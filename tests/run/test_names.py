"""All names in YAML are resolved by the same rules, with the same errors and suggestions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from hooktrainer import Plugin, load_config
from hooktrainer._util.registry import Kind
from hooktrainer.algorithms.registry import FUNCTIONS
from hooktrainer.errors import ConfigError
from hooktrainer.ports import STRATEGIES
from hooktrainer.run.registry import KINDS

ALL: dict[str, Kind[Any]] = {**KINDS, "strategies": STRATEGIES, **FUNCTIONS}
RUN = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 8, "ppo_mini_batch_size": 8},
}
SINK = """
import attrs

@attrs.define
class Good:
    def open(self, run): ...
    def write(self, step, row): ...
    def close(self, status): ...
"""


@attrs.define(kw_only=True)
class Noted(Plugin):
    """Has an option that is text, and one that is a name."""

    note: str = ""
    strategy: str = STRATEGIES.option("drop")


@pytest.fixture(params=sorted(ALL))
def kind(request: pytest.FixtureRequest) -> Kind[Any]:
    return ALL[request.param]


def refusal(kind: Kind[Any], name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.resolve(name)
    return str(caught.value)


def test_a_registered_name_and_its_target_are_the_same_object(kind: Kind[Any]) -> None:
    assert kind
    for name, registered in kind.items():
        assert kind.resolve(name) is kind.resolve(registered.target)
        kind.check_name(name)


def test_an_unknown_name_is_refused_with_the_registered_ones_and_the_closest(kind: Kind[Any]) -> None:
    name = next(iter(kind))
    assert refusal(kind, f"{name}x") == (
        f"no {kind.noun} has the name '{name}x'; there are {', '.join(kind)}, or write "
        f"package.module:{kind.thing.replace('class', 'Class')} or file.py:{kind.thing.replace('class', 'Class')}. "
        f"Did you mean '{name}'?"
    )
    with pytest.raises(ConfigError, match=f"no {kind.noun} has the name '{name}x'"):
        kind.check_name(f"{name}x")


def test_file_without_the_name_of_an_object_is_refused(kind: Kind[Any]) -> None:
    assert refusal(kind, "mine.py").startswith(f"'mine.py' is a file; append the name of the {kind.thing} in it")


def test_a_file_that_does_not_exist_is_refused_with_the_closest_one(kind: Kind[Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    message = f"there is no file {tmp_path}/mime.py. Did you mean 'mine.py'?"
    assert refusal(kind, f"{tmp_path}/mime.py:Mine") == message
    with pytest.raises(ConfigError) as caught:
        kind.check_name(f"{tmp_path}/mime.py:Mine")
    assert str(caught.value) == message


def test_a_module_that_does_not_exist_is_refused(kind: Kind[Any]) -> None:
    assert refusal(kind, "nowhere.at_all:Mine").startswith("there is no module 'nowhere'; a file is written with its")


def test_an_object_that_does_not_exist_is_refused_with_the_closest_one(kind: Kind[Any]) -> None:
    where, _, name = next(iter(kind.values())).target.rpartition(":")
    assert refusal(kind, f"{where}:{name}x") == f"{where} has no {kind.thing} '{name}x'. Did you mean '{name}'?"
    assert refusal(kind, "math:pi").startswith(f"math has no {kind.thing} 'pi', but an object of type float.")


def written(folder: Path, plugin: dict[str, object]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**RUN, "plugins": ["metric_aggregation", "weight_sync", plugin]}))
    return path


def test_a_sink_in_a_file_is_relative_to_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text(SINK)
    path = written(tmp_path / "here", {"use": "log_after_collect", "sinks": ["console", "mine.py:Good"]})
    monkeypatch.chdir(tmp_path)

    config = load_config(path)

    assert config.plugins[2].options["sinks"] == ["console", f"{tmp_path}/here/mine.py:Good"]


def test_a_name_in_an_override_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "mine.py").write_text(SINK)
    path = written(tmp_path / "here", {"use": "log_after_collect"})
    monkeypatch.chdir(tmp_path)

    config = load_config(path, overrides=["plugins.log_after_collect.sinks=['mine.py:Good']"])

    assert config.plugins[2].options["sinks"] == [f"{tmp_path}/mine.py:Good"]


def test_text_option_that_looks_like_a_file_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from hooktrainer.ports import Strategy\n\n\nclass Mine(Strategy):\n    '''Mine.'''\n"
    )
    plugin = {"use": f"{__name__}:Noted", "note": "mine.py:Mine", "strategy": "mine.py:Mine"}

    config = load_config(written(tmp_path, plugin))

    assert config.plugins[2].options == {"note": "mine.py:Mine", "strategy": f"{tmp_path}/mine.py:Mine"}
