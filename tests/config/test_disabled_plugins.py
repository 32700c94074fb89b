from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PROBE, faults, load


@pytest.mark.parametrize(
    "item",
    [
        "use: validaton",
        "use: 'helpers.config_yaml:Nope'",
        "use: 'helpers.nope:Nope'",
        "use: nope.py:Nope",
        "use: validation, evry: 3",
        "use: validation, every: 0",
        "use: validation, every: x",
        "use: log_after_collect, sinks: [jsonll]",
        "use: log_after_collect, sinks: [console, console]",
        "use: log_after_collect, sinks: console",
        "use: staleness, max_off_policy_strategy: dorp",
        "use: validation, priority: {step_ned: 5}",
        "use: 'helpers.faulty_plugins:Nope'",
    ],
)
def test_a_disabled_plugin_has_the_faults_of_an_enabled_one(tmp_path: Path, item: str) -> None:
    text = BASE + "plugins: [metric_aggregation, weight_sync, {ITEM, enabled: ENABLED}]\n".replace("ITEM", item)
    enabled = faults(tmp_path, text.replace("ENABLED", "true"))
    assert enabled
    assert faults(tmp_path, text.replace("ENABLED", "false")) == enabled


def test_an_override_of_an_unknown_option_of_a_disabled_plugin_is_a_fault(tmp_path: Path) -> None:
    text = BASE + "plugins: [weight_sync, {use: validation, enabled: false}]\n"
    (message,) = faults(tmp_path, text, "plugins.validation.evry=3")
    assert message.startswith("plugins[1].evry: unknown key 'evry'")
    (message,) = faults(
        tmp_path, text.replace(", enabled: false", ""), "plugins.validation.enabled=no", "plugins.1.every=0"
    )
    assert message.startswith("plugins[1].every: ")


def test_a_disabled_plugin_may_conflict_with_the_rest_of_the_run(tmp_path: Path) -> None:
    plugins = f"weight_sync, {{use: '{PROBE}', rank: 1000, enabled: false}}, {{use: weight_sync, enabled: false}}"
    entries = load(tmp_path, BASE + f"plugins: [{plugins}]\n").plugins
    assert [entry.enabled for entry in entries] == [True, False, False]
