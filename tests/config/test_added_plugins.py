"""Overrides that add plugins to the list, and items to other lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PLUGINS, faults, load, written
from hooktrainer.cli import main

OFTEN = BASE + "plugins: [metric_aggregation, weight_sync, {use: validation, name: often, every: 3}]\n"
SINKS = BASE + "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [console]}]\n"


def added(tmp_path: Path, *overrides: str, text: str = PLUGINS, listed: int = 2) -> list[tuple[str, dict[str, object]]]:
    """The plugins after those of the file."""
    return [(entry.use, dict(entry.options)) for entry in load(tmp_path, text, *overrides).plugins[listed:]]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["plugins.checkpoint.every=5"], [("checkpoint", {"every": 5})]),
        (["plugins.checkpoint={every: 5}"], [("checkpoint", {"every": 5})]),
        (
            ["plugins.checkpoint.every=5", "plugins.checkpoint.keep_last=2"],
            [("checkpoint", {"every": 5, "keep_last": 2})],
        ),
        (["plugins+=checkpoint"], [("checkpoint", {})]),
        (["plugins+=checkpoint", "plugins.checkpoint.every=5"], [("checkpoint", {"every": 5})]),
        (["plugins+={use: checkpoint, every: 5}"], [("checkpoint", {"every": 5})]),
        (["plugins+=[memory, checkpoint]"], [("memory", {}), ("checkpoint", {})]),
        (["plugins.validation.name=often", "plugins.often.every=2"], [("validation", {"every": 2})]),
    ],
)
def test_a_plugin_that_the_file_lacks_is_added(
    tmp_path: Path, overrides: list[str], expected: list[tuple[str, dict[str, object]]]
) -> None:
    assert added(tmp_path, *overrides) == expected


def test_a_missing_list_of_plugins_is_made(tmp_path: Path) -> None:
    names = ("metric_aggregation", "weight_sync", "memory")
    found = added(tmp_path, *(f"plugins+={name}" for name in names), text=BASE, listed=0)
    assert [use for use, _ in found] == [*names]


def test_an_override_appends_to_a_list_of_the_file(tmp_path: Path) -> None:
    overrides = ["plugins.log_after_collect.sinks+=jsonl", "plugins.2.sinks+=[{use: csv, critical: true}]"]
    (found,) = added(tmp_path, *overrides, text=SINKS)
    assert found[1]["sinks"] == ["console", "jsonl", {"use": "csv", "critical": True}]


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (
            OFTEN,
            "plugins.validation.every=2",
            "no plugin has the name 'validation'; there are metric_aggregation, weight_sync, often.",
        ),
        (PLUGINS, "plugins.chekpoint.every=2", "Did you mean 'checkpoint'?"),
        (PLUGINS, "plugins.checkpoint.evry=2", "plugins[2].evry: unknown key 'evry'"),
        (PLUGINS, "plugins+=chekpoint", "plugins[2]: no plugin has the name 'chekpoint'"),
        (PLUGINS, "plugins+=weight_sync", "plugins[2]: a run has only one weight_sync, and plugins[1] is one"),
        (PLUGINS, "seed+=3", "seed: '+=' appends to a list, but seed is not in the configuration; write '='"),
        (PLUGINS, "model.use+=3", "model.use: '+=' appends to a list, but model.use is 'decoder' (str); write '='"),
        (SINKS, "plugins.log_after_collect.sinks+=[1", "plugins.log_after_collect.sinks: '[1' is not valid YAML"),
        (PLUGINS, "+=3", "an override is written key=value"),
    ],
)
def test_faults_of_additions_name_the_override(tmp_path: Path, text: str, override: str, message: str) -> None:
    (found,) = faults(tmp_path, text, override)
    assert message in found


def test_a_plugin_is_added_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, PLUGINS)

    arguments = ["plan", "--with", "validation", "run.yaml", "plugins.validation.every=7", "--with", "memory"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "validation.evaluate" in out
    assert "every 7" in out
    assert "memory.measure" in out

    assert main(["plan", "run.yaml", "--with", "memroy"]) == 2
    err = capsys.readouterr().err
    assert "override plugins+=memroy): no plugin has the name 'memroy'" in err
    assert "Did you mean 'memory'?" in err
