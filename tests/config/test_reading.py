from pathlib import Path

import pytest
import yaml

from helpers import config_yaml
from helpers.config_yaml import BASE, PLUGINS, faults, load
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import ConfigWarning, config_from_mapping

# Numbers and text


def test_1e_3_is_read_as_a_number_from_files_overrides_and_mappings(tmp_path: Path) -> None:
    text = PLUGINS.replace("lr: 0.001", "lr: 1e-3")
    assert yaml.safe_load(text)["optim"]["lr"] == "1e-3"
    for config in (
        load(tmp_path, text),
        load(tmp_path, PLUGINS.replace("lr: 0.001", "lr: 7"), "optim.lr=1e-3"),
        config_from_mapping(yaml.safe_load(text)),
    ):
        assert config.optim.lr == 0.001
        assert type(config.optim.lr) is float


def test_123E4_in_place_of_text_requires_quotes(tmp_path: Path) -> None:
    assert load(tmp_path, PLUGINS + "run: {name: '123E4'}").run.name == "123E4"
    expected = ["run.name: expected str, found 1230000.0 (float); to keep it as text, put it in quotes"]
    assert faults(tmp_path, PLUGINS + "run: {name: 123E4}") == expected
    assert faults(tmp_path, PLUGINS, "run.name=123E4") == expected


# Misspelt keys


def test_a_misspelt_key_at_the_top_level_is_refused_with_its_full_path(tmp_path: Path) -> None:
    for found in (
        faults(tmp_path, PLUGINS + "paramter_sync_step: 8"),
        faults(tmp_path, PLUGINS, "paramter_sync_step=8"),
    ):
        (message,) = found
        assert message.startswith("paramter_sync_step: unknown key 'paramter_sync_step'")
        assert message.endswith("Did you mean 'trainer.parameter_sync_step'?")


def test_a_misspelt_sync_step_never_falls_back_to_the_default(tmp_path: Path) -> None:
    text = PLUGINS.replace("parameter_sync_step: 4", "paramter_sync_step: 4")
    (message,) = faults(tmp_path, text)
    assert message.startswith("trainer.paramter_sync_step: unknown key")
    assert message.endswith("Did you mean 'parameter_sync_step'?")


def test_a_misspelt_option_of_a_plugin_is_refused_with_its_full_path(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, BASE + "plugins: [weight_sync, {use: validation, evrey: 5}]\n")
    assert message.startswith("plugins[1].evrey: unknown key 'evrey'")
    assert message.endswith("Did you mean 'every'?")


def test_a_valid_key_at_the_wrong_level_is_refused_with_the_right_path(tmp_path: Path) -> None:
    text = BASE + "plugins: [weight_sync, {use: validation, every: 5}]\nparameter_sync_step: 4\nn: 4\nevery: 5\n"
    assert [message.rpartition("Did you mean ")[2] for message in faults(tmp_path, text, "optim.total_steps=3")] == [
        "'trainer.parameter_sync_step'?",
        "'rollout.n'?",
        "'plugins.validation.every'?",
        "'trainer.total_steps'?",
    ]
    first, second = faults(tmp_path, PLUGINS, "plugins.weight_sync.total_steps=3", "task.temperature=1")
    assert first.startswith("task.temperature:")
    assert first.endswith("Did you mean 'rollout.temperature'?")
    assert second.startswith("plugins[1].total_steps:")
    assert second.endswith("Did you mean 'trainer.total_steps'?")


# Empty values


@pytest.mark.parametrize("text", ["plugins:\n", "plugins: []\n", "", "plugins: [{use: weight_sync, enabled: false}]\n"])
def test_configuration_without_plugins_loads_with_one_warning(tmp_path: Path, text: str) -> None:
    with pytest.warns(ConfigWarning, match="nothing logs, and nothing syncs") as caught:
        config = load(tmp_path, BASE + text)
    assert len(caught) == 1
    assert caught[0].filename == config_yaml.__file__
    assert composition_of(config).plan.plugins == ()


@pytest.mark.parametrize(
    "item", ["validation", "validation:", "{use: validation}", "{use: validation, every: }", "{validation: }"]
)
def test_plugin_entry_without_options_has_the_defaults(tmp_path: Path, item: str) -> None:
    config = load(tmp_path, BASE + f"plugins:\n  - weight_sync\n  - {item}\n")
    _, entry = composition_of(config).plan.plugins
    assert (entry.name, entry.address, entry.plugin.every) == ("validation", "plugins[1]", 5)


def test_null_reserved_key_means_its_default(tmp_path: Path) -> None:
    (entry,) = load(tmp_path, BASE + "plugins: [{use: weight_sync, name: , enabled: , priority: }]").plugins
    assert (entry.name, entry.enabled, entry.priority, entry.options) == ("weight_sync", True, {}, {})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("", "plugins[1]: this item is empty; write a name, or a mapping with `use`"),
        ("3", "plugins[1]: expected a name or a mapping with `use`, found 3 (int)"),
        ("[a]", "plugins[1]: expected a name or a mapping with `use`, found ['a'] (list)"),
        ("{}", "plugins[1]: `use`, the name of the class, is missing; found an empty mapping"),
        ("{every: 3, size: 2}", "plugins[1]: `use`, the name of the class, is missing; found every, size"),
        (
            "validation: {every: 5, size: 2}",
            (
                "plugins[1]: options are written next to `use`, not below the name; "
                "write {use: validation, every: 5, size: 2}"
            ),
        ),
        (
            "{name: logger, every: 1}",
            "plugins[1]: `name` only names the instance; `use` names its class, as in {use: logger}",
        ),
        ("{use: 3}", "plugins[1].use: expected str, found 3 (int); to keep it as text, put it in quotes"),
        ("{use: validation, 1: 2}", "plugins[1]: names of options must be text, found 1 (int)"),
    ],
)
def test_plugin_entry_without_a_valid_name_is_a_fault_with_its_index(tmp_path: Path, item: str, message: str) -> None:
    assert message in faults(tmp_path, BASE + f"plugins:\n  - weight_sync\n  - {item}\n")


def test_invalid_names_are_not_compared_for_duplicates(tmp_path: Path) -> None:
    found = faults(tmp_path, PLUGINS.replace("]", ", {use: validation, name: 1}, {use: validation, name: 2, evry: 1}]"))
    assert [message.partition(":")[0] for message in found] == ["plugins[2].name", "plugins[3].name", "plugins[3].evry"]


def test_mapping_in_place_of_the_plugin_list_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, BASE + "plugins: {use: validation}") == [
        "plugins: expected a list, found {'use': 'validation'} (dict)"
    ]
