"""Sinks that a configuration names by their class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.run.registry import SINKS

RUN = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 8, "ppo_mini_batch_size": 8},
}
MODULE = """
from hooktrainer import Plugin

class Good:
    def __init__(self, directory, total_steps, *, width=3):
        self.made = (directory, total_steps)
    def open(self): ...
    def write(self, step, row): ...
    def close(self): ...

class OnlyDirectory(Good):
    def __init__(self, directory): ...

class NeedsMore(Good):
    def __init__(self, directory, total_steps, *, width): ...

class Mute:
    def open(self): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write an importable module with sinks, and remove it from `sys.modules` afterwards."""
    (tmp_path / "odd_sinks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if "odd_sinks" in name]:
        del sys.modules[name]


def with_sinks(*sinks: str) -> dict[str, object]:
    plugins = ["metric_aggregation", "weight_sync", {"use": "log_after_collect", "sinks": [*sinks]}]
    return RUN | {"plugins": plugins}


def test_sink_is_resolved_by_name_module_or_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = ("console", "odd_sinks:Good", "odd_sinks.py:Good")
    config = config_from_mapping(with_sinks(*names))
    (entry,) = [entry for entry in composition_of(config).plan.plugins if entry.name == "log_after_collect"]
    assert entry.plugin.sinks == (*names[:2], f"{folder}/odd_sinks.py:Good")
    assert SINKS.resolve(names[2]) is SINKS.resolve(entry.plugin.sinks[2])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            "OnlyDirectory",
            (
                "a sink is constructed as OnlyDirectory(directory, total_steps), "
                "but OnlyDirectory of odd_sinks takes (directory)"
            ),
        ),
        ("NeedsMore", "takes (directory, total_steps, width): missing a required"),
        ("Mute", "Mute of odd_sinks is not a sink: it has no write, close (hooktrainer.ports.Sink)"),
        ("Godo", "odd_sinks has no class 'Godo'. Did you mean 'Good'?"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_sink_that_cannot_be_constructed_is_a_fault(use: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(with_sinks("console", f"odd_sinks:{use}"))
    assert str(caught.value).startswith("plugins[2].sinks[1]: ")
    assert message in str(caught.value)
