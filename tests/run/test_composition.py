import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load
from hooktrainer import Plugin
from hooktrainer.config import Config, Use
from hooktrainer.config.sections import SECTIONS
from hooktrainer.errors import ConfigError, Fault, PlanError
from hooktrainer.plugin import port
from hooktrainer.ports import Sink
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import load_config


def test_entries_carry_name_address_and_priority_in_the_order_of_the_list(tmp_path: Path) -> None:
    text = BASE + (
        f"plugins: [weight_sync, {{use: validation, enabled: false}}, {{use: '{PROBE}', rank: 2}}, "
        "{use: validation, name: often, every: 1, priority: {evaluate: 450}}]\n"
    )
    entries = composition_of(load(tmp_path, text)).plan.plugins
    assert [(entry.name, entry.address, dict(entry.priority)) for entry in entries] == [
        ("weight_sync", "plugins[0]", {}),
        ("probe", "plugins[2]", {}),
        ("often", "plugins[3]", {"evaluate": 450}),
    ]


def test_duplicate_plugin_name_is_a_fault(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, BASE + "plugins: [weight_sync, validation, {use: validation, every: 1}]")
    assert found == (
        "plugins[2]: plugins[1] is named 'validation' too; the names of plugins must differ: `name: validation_2`"
    )


@pytest.mark.parametrize(
    "second", ["checkpoint", "{use: checkpoint, name: checkpoint_2}", "{use: checkpoint, every: 1}"]
)
def test_a_second_checkpoint_plugin_is_one_fault(tmp_path: Path, second: str) -> None:
    (found,) = faults(tmp_path, BASE + f"plugins: [weight_sync, checkpoint, {second}]")
    assert found == (
        "plugins[2]: a run has only one checkpoint, and plugins[1] is one: checkpoint.restore makes 'run.restored'. "
        "Remove one of them"
    )


def test_duplicate_name_of_a_disabled_plugin_is_accepted(tmp_path: Path) -> None:
    config = load(tmp_path, BASE + "plugins: [weight_sync, {use: weight_sync, enabled: false}]")
    assert [entry.address for entry in composition_of(config).plan.plugins] == ["plugins[0]"]


def test_sentence_of_plugin_check_is_a_fault_with_the_address_of_the_plugin(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', rank: 64}}]\n"
    sentence = "plugins[0]: rank 64 is above train_batch_size 32"
    assert faults(tmp_path, text) == [sentence]
    assert faults(tmp_path, text, "rollout.n=many") == ["rollout.n: expected int, found 'many' (str)", sentence]
    assert faults(tmp_path, text, "optim.lr=0") == ["optim.lr: expected a value > 0.0, found 0.0 (float)"]


def test_named_ports_accept_registered_names(tmp_path: Path) -> None:
    def sinks(text: str) -> list[str]:
        config = load(tmp_path, BASE + f"plugins: [{{use: log_after_collect, sinks: {text}}}, metric_aggregation]")
        return [type(sink).__name__ for sink in composition_of(config).plan.plugins[0].plugin.sinks]

    assert sinks("[jsonl]") == ["JsonlSink"]
    assert sinks("[]") == []
    assert sinks("") == ["ConsoleSink", "JsonlSink"]
    for text, message in {
        "[consol, jsonl]": r"plugins\[0\]\.sinks\[0\]: no sink has the name 'consol'; .* Did you mean 'console'\?",
        "[jsonl, jsonl]": r"plugins\[0\]\.sinks\[1\]: 'jsonl' is listed twice",
        "console": r"plugins\[0\]\.sinks: expected a list, found 'console' \(str\); write \[console\]",
        "[1]": r"plugins\[0\]\.sinks\[0\]: expected a name or a mapping with `use`, found 1 \(int\)",
    }.items():
        with pytest.raises(ConfigError, match=message):
            sinks(text)


def test_faults_of_components_plugins_and_options_are_shown_together(tmp_path: Path) -> None:
    text = BASE + "plugins: [metric_agregation, {use: validation, every: x}, {use: weight_sync, sise: 1}]"
    found = faults(tmp_path, text, "task.use=sort_digit", "model.layers=0", "rollout.n=two")
    assert [message.partition(":")[0] for message in found] == [
        "task", "model.layers", "rollout.n", "plugins[0]", "plugins[1].every", "plugins[2].sise"
    ]  # fmt: skip


def test_faults_of_all_phases_are_shown_once_in_the_order_of_the_sections(tmp_path: Path) -> None:
    text = PLUGINS + "run: {nmae: x}\n"
    overrides = [
        "plugins.1.priority={step_ned: 300, fit_start: SYNC}",
        "plugins.weight_snc.enabled=false",
        "plugins.metric_aggregation.rles={}",
        "trainer.train_batch_size=9",
        "rollout.n=many",
        "task.digts=4",
        "algorithm.foo=1",
        "replay.capacity=1",
        "model.layers=???",
        "sead=1",
    ]
    expected = [
        "sead", "task.digts", "model.layers", "rollout.n", "algorithm.foo", "trainer.train_batch_size",
        "replay.capacity", "run.nmae", "plugins.weight_snc.enabled", "plugins[0].rles",
        "plugins[1].priority.fit_start", "plugins[1].priority.step_ned",
    ]  # fmt: skip
    for order in (overrides, overrides[::-1]):
        found = faults(tmp_path, text, *order)
        assert sorted({message.partition(":")[0] for message in found}) == sorted(expected)
        assert len(found) == len(expected)
        sections = [re.split(r"\W", message)[0] for message in found]
        assert list(dict.fromkeys(sections)) == ["sead", *[name for name in SECTIONS if name in sections]]


def test_config_changed_in_python_is_validated_again(tmp_path: Path) -> None:
    config = load(tmp_path, PLUGINS)
    config = attrs.evolve(
        config, model=Use(use="decoder", options={"layers": 0}), trainer=attrs.evolve(config.trainer, total_steps=None)
    )
    with pytest.raises(ConfigError) as caught:
        composition_of(config)
    assert [fault.address for fault in caught.value.faults] == ["model.layers", "trainer.total_steps"]


def test_faults_of_the_plan_are_shown_with_those_of_components(tmp_path: Path) -> None:
    unordered = BASE + "plugins: [weight_sync, metric_aggregation, {use: log_after_collect, priority: {step_end: 150}}]"
    with pytest.raises(PlanError):
        load(tmp_path, unordered)
    found = faults(tmp_path, unordered, "model.layers=0", "plugins.metric_aggregation.rules={a: maxx}")
    assert [message.partition(":")[0] for message in found] == ["model.layers", "plugins[1]", "plugins[2]"]


def test_a_plugin_with_a_faulty_option_is_planned_with_its_default(tmp_path: Path) -> None:
    text = BASE + "plugins: [weight_sync, metric_aggregation, {use: log_after_collect, priority: {step_end: 150}}]"
    found = faults(tmp_path, text, "plugins.0.evry=1", "plugins.1.ruls={}", "plugins.2.sinks=console")
    assert [message.partition(":")[0] for message in found] == [
        "plugins[0].evry", "plugins[1].ruls", "plugins[2].sinks", "plugins[2]"
    ]  # fmt: skip


@attrs.define(kw_only=True)
class Demanding(Plugin):
    """Cannot be built without its options."""

    size: int
    sinks: Sequence[Sink] = port(named=True)


def test_ports_of_a_plugin_that_cannot_be_built_are_checked(tmp_path: Path) -> None:
    text = BASE + f"plugins: [weight_sync, {{use: '{__name__}:Demanding', sinks: [jsonl, jsonl]}}, log_after_collect]"
    assert faults(tmp_path, text) == [
        "plugins[1].size: missing; a value is required (int)",
        "plugins[1].sinks[1]: 'jsonl' is listed twice",
    ]


def test_missing_data_is_no_fault_while_a_plugin_entry_is_faulty(tmp_path: Path) -> None:
    for item in ("metric_agregation", "{ue: metric_aggregation}", ""):
        (found,) = faults(tmp_path, BASE + f"plugins: [weight_sync, log_after_collect, {item or 'null'}]")
        assert found.startswith("plugins[2]: ")


def test_priority_by_band_name_is_a_fault_that_lists_the_bands(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, PLUGINS, "plugins.weight_sync.priority={step_end: SYNC}")
    assert found == (
        "plugins[1].priority.step_end: expected int, found 'SYNC' (str). Write a number such as 350, or Priority.SYNC "
        "+ 50 in Python. The bands are PREPARE 100, COLLECT 200, SYNC 300, EVALUATE 400, REDUCE 500, REPORT 600, "
        "SAVE 700, CLEANUP 800."
    )


def test_override_of_a_key_with_a_dot_is_a_fault_that_shows_the_syntax(tmp_path: Path) -> None:
    override = "plugins.metric_aggregation.rules.timing_s/a.b=last"
    (found,) = faults(tmp_path, PLUGINS, override)
    assert found.startswith(
        "plugins[0].rules.timing_s/a: expected str, found {'b': 'last'} (dict); a dot in an override"
    )
    remedy = "plugins[0].rules={timing_s/a.b: last}"
    assert found.endswith(f"write {remedy}")
    assert load(tmp_path, PLUGINS, remedy).plugins[0].options == {"rules": {"timing_s/a.b": "last"}}


def test_run_without_an_end_is_a_fault_that_names_both_fixes(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, PLUGINS, "trainer.total_steps=")
    assert found.startswith("trainer.total_steps: missing, and the task never ends; set trainer.total_steps, or ")
    assert "task.size" in found
    assert "trainer.total_epochs" in found
    assert load(tmp_path, PLUGINS, "trainer.total_steps=", "task.size=64").trainer.total_steps is None
    assert len(faults(tmp_path, PLUGINS, "trainer.total_steps=", "task.digts=64", "trainer.train_batch_size=1")) == 3


# What the code of a plugin raises


@attrs.define(kw_only=True)
class Raising(Plugin):
    """Raises the given error, or returns the given sentences from `check`."""

    built: str = ""
    checked: str = ""
    said: object = ()

    def __attrs_post_init__(self) -> None:
        _raise(self.built)

    def check(self, config: Config) -> Any:
        _raise(self.checked)
        return self.said


def _raise(error: str) -> None:
    if error:
        raise {
            "ValueError": ValueError("no"),
            "TypeError": TypeError("no"),
            "ConfigError": ConfigError([Fault("", "no"), Fault("built", "nor this")]),
            "KeyError": KeyError("k"),
            "AttributeError": AttributeError("no attribute"),
        }[error]


@pytest.mark.parametrize("place", ["built", "checked"])
@pytest.mark.parametrize(
    ("error", "messages"),
    [
        ("ValueError", ["plugins[1]: no"]),
        ("TypeError", ["plugins[1]: no"]),
        ("ConfigError", ["plugins[1]: no", "plugins[1].built: nor this"]),
        ("KeyError", ["plugins[1]: KeyError: 'k' ("]),
        ("AttributeError", ["plugins[1]: AttributeError: no attribute ("]),
    ],
)
def test_error_raised_by_a_plugin_is_a_fault_with_its_address(
    tmp_path: Path, place: str, error: str, messages: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, BASE + f"plugins: [weight_sync, {{use: '{__name__}:Raising', {place}: {error}}}]")
    found = [str(fault) for fault in caught.value.faults]
    assert len(found) == len(messages)
    assert all(one.startswith(other) for one, other in zip(found, messages, strict=True))
    if error in ("KeyError", "AttributeError"):
        assert f"{Path(__file__).name}, line " in found[0]
        assert type(caught.value.__cause__).__name__ == error


@pytest.mark.parametrize(
    ("said", "messages"),
    [
        ("too large", ["plugins[0]: too large"]),
        ("[one, two]", ["plugins[0]: one", "plugins[0]: two"]),
        ("[3]", ["plugins[0]: check returns sentences, found 3 (int)"]),
        ("3", ["plugins[0]: 'int' object is not iterable"]),
    ],
)
def test_check_returns_one_fault_per_sentence(tmp_path: Path, said: str, messages: list[str]) -> None:
    assert faults(tmp_path, BASE + f"plugins: [{{use: '{__name__}:Raising', said: {said}}}]") == messages


def test_check_that_returns_none_adds_no_fault(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + f"plugins: [{{use: '{__name__}:Raising', said: null}}]")


def test_error_in_check_is_ignored_if_the_config_has_other_faults(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{__name__}:Raising', checked: KeyError}}]"
    assert faults(tmp_path, text, "rollout.n=many") == ["rollout.n: expected int, found 'many' (str)"]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("configs/*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_composes(path: Path) -> None:
    parts = composition_of(load_config(path))
    assert "weight_sync" in [entry.name for entry in parts.plan.plugins]


def test_port_of_an_unavailable_type_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import attrs\nfrom hooktrainer import Plugin, port\nfrom hooktrainer.ports import Learner\n\n\n"
        "@attrs.define(kw_only=True)\nclass Odd(Plugin):\n    '''Odd.'''\n\n"
        "    learner: int = port()\n    engine: 'Rollouts' = port()\n\n\n"
        "@attrs.define(kw_only=True)\nclass Fine(Plugin):\n    '''Fine.'''\n\n    learner: Learner = port()\n"
    )
    found = faults(tmp_path, BASE + "plugins: [weight_sync, 'odd.py:Odd', 'odd.py:Fine']")

    assert found == [
        "plugins[1]: a port of Odd has a type that is not imported at run time: name 'Rollouts' is not defined"
    ]
