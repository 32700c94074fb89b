"""Sinks that a configuration names by their class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import composition_of, require_runnable
from hooktrainer.run.loading import config_from_mapping, dump, load_config
from hooktrainer.run.registry import SINKS

RUN = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 8, "ppo_mini_batch_size": 8},
}
MODULE = """
import attrs

@attrs.define
class Good:
    width: int = attrs.field(default=3, validator=attrs.validators.gt(0))

    def open(self, run): ...
    def write(self, step, row): ...
    def close(self, status): ...

@attrs.define
class Old(Good):
    def open(self): ...

@attrs.define
class RewindsNothing(Good):
    def rewind(self): ...

class NoOptions(Good):
    pass

@attrs.define
class Mute:
    def open(self, run): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write an importable module with sinks, and remove it from `sys.modules` afterwards."""
    (tmp_path / "odd_sinks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if "odd_sinks" in name]:
        del sys.modules[name]


def with_sinks(*sinks: object) -> dict[str, object]:
    plugins = ["metric_aggregation", "weight_sync", {"use": "log_after_collect", "sinks": [*sinks]}]
    return RUN | {"plugins": plugins}


def built(*sinks: object) -> tuple[Any, ...]:
    entries = composition_of(config_from_mapping(with_sinks(*sinks))).plan.plugins
    (entry,) = [entry for entry in entries if entry.name == "log_after_collect"]
    return entry.plugin.sinks


def test_sink_is_resolved_by_name_module_or_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    console, good, other = built("console", "odd_sinks:Good", {"use": "odd_sinks.py:Good", "width": 7})
    assert type(console) is SINKS.resolve("console")
    assert type(good) is SINKS.resolve("odd_sinks:Good")
    assert type(other) is SINKS.resolve("odd_sinks.py:Good")
    assert (good.width, other.width) == (3, 7)


def test_options_of_a_sink_are_kept_in_the_written_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTH", "7")
    config = config_from_mapping(with_sinks("jsonl", {"use": "odd_sinks:Good", "width": "${oc.env:WIDTH}"}))
    written = config.plugins[2].options["sinks"]
    assert written == ["jsonl", {"use": "odd_sinks:Good", "width": 7}]
    (folder / "run.yaml").write_text(dump(config))
    assert load_config(folder / "run.yaml").plugins[2].options["sinks"] == written


def test_a_file_of_a_sink_with_options_is_relative_to_the_yaml(folder: Path) -> None:
    sinks = ["odd_sinks.py:Good", {"use": "odd_sinks.py:Good", "width": 1}]
    config = config_from_mapping(with_sinks(*sinks[1:]), base=folder)
    assert config.plugins[2].options["sinks"] == [{"use": f"{folder}/odd_sinks.py:Good", "width": 1}]
    with pytest.raises(ConfigError, match=r"plugins\[2\].sinks\[1\]: '.*/odd_sinks.py:Good' is listed twice"):
        config_from_mapping(with_sinks(*sinks), base=folder)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("Old", "open of Old of odd_sinks takes (self), but a sink has open(self, run)"),
        ("RewindsNothing", "rewind of RewindsNothing of odd_sinks takes (self), but a sink has rewind(self, step)"),
        ("NoOptions", "NoOptions of odd_sinks is not an attrs class, so it has no options"),
        ("Mute", "Mute of odd_sinks is not a sink: it has no write, close (hooktrainer.ports.Sink)"),
        ("Godo", "odd_sinks has no class 'Godo'. Did you mean 'Good'?"),
        (
            {"use": "odd_sinks:Good", "widht": 4},
            "unknown key 'widht'; odd_sinks:Good takes width. Did you mean 'width'?",
        ),
        ({"use": "odd_sinks:Good", "width": "broad"}, "expected int, found 'broad' (str)"),
        ({"use": "odd_sinks:Good", "width": 0}, "expected a value > 0, found 0 (int)"),
        ({"width": 4}, "`use`, the name of the class, is missing; found width"),
        ({"jsonl": {"critical": False}}, "write {use: jsonl, critical: False}"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_sink_that_cannot_be_constructed_is_a_fault_with_its_address(sink: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(with_sinks("console", f"odd_sinks:{sink}" if isinstance(sink, str) else sink))
    assert str(caught.value).startswith("plugins[2].sinks[1]")
    assert message in str(caught.value)


def test_a_missing_package_is_a_fault_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooktrainer.sinks.tracker.find_spec", lambda name: None)
    composition = composition_of(config_from_mapping(with_sinks("console", {"use": "tensorboard"})))
    with pytest.raises(ConfigError) as caught:
        require_runnable(composition)
    assert str(caught.value) == (
        "plugins[2].sinks[1]: the sink tensorboard needs tensorboard, which is not installed: "
        "pip install 'hooktrainer[tensorboard]'"
    )
