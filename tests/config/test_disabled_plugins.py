from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PROBE, faults, load, written
from hooktrainer.cli import main
from hooktrainer.errors import ConfigError
from hooktrainer.run import loading
from hooktrainer.run.composition import require_runnable


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


ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


@pytest.mark.parametrize(
    ("disabled", "override", "starts"),
    [
        ("metric_aggregation", "plugins.metric_aggregation.enabled=false", ["plugins[4] (log_after_collect; "]),
        ("metric_aggregation", "plugins[0].enabled=false", ["plugins[4] (log_after_collect; "]),
        ("metric_aggregation", "plugins.0={enabled: false}", ["plugins[4] (log_after_collect; "]),
        (
            "weight_sync",
            "plugins.weight_sync.enabled=false",
            ["plugins[3] (validation; ", "plugins[7] (export; "],
        ),
    ],
)
def test_a_plugin_that_an_override_disabled_is_named_with_the_override(
    disabled: str, override: str, starts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", QUICKSTART, override]) == 2
    heading, *lines = capsys.readouterr().err.splitlines()
    place = {"metric_aggregation": 0, "weight_sync": 1}[disabled]
    assert heading.endswith(" on the command line:")
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(f"  {start}override {override}): ")
        assert line.endswith(f"{disabled} is configured but disabled: set plugins[{place}].enabled to true.")
        assert "Add " not in line


def test_a_plugin_that_the_file_disabled_is_named_with_its_address(tmp_path: Path) -> None:
    plugins = "weight_sync, {use: metric_aggregation, name: rows, enabled: false}, log_after_collect"
    (message,) = faults(tmp_path, BASE + f"plugins: [{plugins}]\n")
    assert message.startswith("plugins[2]: log_after_collect.write (step_end, REPORT 600) needs 'metrics.row'")
    assert message.endswith("no handler makes. rows is configured but disabled: set plugins[1].enabled to true.")


OFF = "{use: validation, enabled: false}"


@pytest.mark.parametrize(
    ("plugins", "overrides", "address", "place"),
    [
        ("metric_aggregation, {use: weight_sync, enabled: false}", [], "", 1),
        ("weight_sync, metric_aggregation, {use: checkpoint, enabled: false}", ["run.resume=auto"], "run.resume", 2),
        (
            f"weight_sync, metric_aggregation, {OFF}, {{use: checkpoint, keep_best: val/score/mean}}",
            [],
            "plugins[3].keep_best",
            2,
        ),
        ("weight_sync, {use: 'mine.py:Sends', enabled: false}, {use: 'mine.py:Hears'}", [], "plugins[2]", 1),
        ("weight_sync, {use: 'mine.py:Makes', enabled: false}, {use: 'mine.py:Needs'}", [], "plugins[2]", 1),
    ],
)  # fmt: skip
def test_a_fault_of_what_a_disabled_plugin_provides_names_the_plugin(
    tmp_path: Path, plugins: str, overrides: list[str], address: str, place: int
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    path = written(tmp_path, BASE + f"plugins: [{plugins}]\n")
    with pytest.raises(ConfigError) as caught:
        require_runnable(loading.load(path, overrides=overrides))
    (fault,) = caught.value.faults
    assert fault.address == address
    assert f"is configured but disabled: set plugins[{place}].enabled to true." in fault.message
    assert "Add " not in fault.message


def test_the_simulation_names_a_disabled_staleness_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", QUICKSTART, "plugins.staleness.enabled=false", "--thresholds", "2"]
    assert main(arguments) == 2
    assert "staleness is configured but disabled: set plugins[2].enabled to true." in capsys.readouterr().err


MINE = """
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import Event, StepEnd


@attrs.frozen(kw_only=True)
class Mine(Event):
    pass


@attrs.define(kw_only=True)
class Sends(Plugin):
    @on(StepEnd, emits=[Mine])
    def send(self, event):
        event.control.emit(Mine())


@attrs.define(kw_only=True)
class Hears(Plugin):
    @on(Mine)
    def hear(self, event):
        pass


@attrs.define(kw_only=True)
class Makes(Plugin):
    @on(StepEnd, makes=["mine"])
    def make(self, event):
        pass


@attrs.define(kw_only=True)
class Needs(Plugin):
    @on(StepEnd, priority=400, needs=["mine"])
    def need(self, event):
        pass
"""
