"""Environment variables as values of options."""

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load, probe
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import dump, load_config

SYNC = PLUGINS.replace("parameter_sync_step: 4", "parameter_sync_step: '${oc.env:PSS}'")
CHECKPOINT = BASE + "plugins: [weight_sync, {use: checkpoint, keep_best: '${oc.env:X}'}]\n"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PSS", "X"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", ["${oc.env:PSS}", "${oc.env:PSS,1}"])
def test_a_variable_is_read_as_the_integer_that_the_option_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PSS", "4")
    assert load(tmp_path, SYNC.replace("${oc.env:PSS}", value)).trainer.parameter_sync_step == 4


def test_the_default_of_an_unset_variable_is_read_as_the_option_expects(tmp_path: Path) -> None:
    config = load(tmp_path, SYNC.replace("{oc.env:PSS}", "{oc.env:PSS,4}"))
    assert config.trainer.parameter_sync_step == 4
    config = load(tmp_path, PLUGINS + "run: {name: '${oc.env:X,123E4}'}\nseed: ${oc.env:X,${trainer.total_steps}}\n")
    assert (config.run.name, config.seed) == ("123E4", 2)
    assert load(tmp_path, PLUGINS + "run: {name: 'exp${oc.env:X,\"\"}'}\n").run.name == "exp"


@pytest.mark.parametrize("value", ["${oc.env:PSS}", "${oc.env:PSS,4}", "1${oc.env:PSS}"])
def test_an_empty_variable_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PSS", "")
    (message,) = faults(tmp_path, SYNC.replace("${oc.env:PSS}", value))
    assert message.startswith("trainer.parameter_sync_step: environment variable PSS is empty; ")


def test_an_unset_variable_without_a_default_is_a_fault(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, SYNC)
    problem, _, remedy = message.partition("; ")
    assert problem == "trainer.parameter_sync_step: environment variable PSS is not set"
    assert remedy == "set it, or add a default as in ${oc.env:NAME,default}"


def test_an_empty_variable_is_no_text_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "")
    (message,) = faults(tmp_path, CHECKPOINT)
    assert message.startswith("plugins[1].keep_best: environment variable X is empty; ")
    (message,) = faults(tmp_path, PLUGINS + "run: {name: 'exp-${oc.env:X}'}\n")
    assert message.startswith("run.name: environment variable X is empty; ")


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("enabled", "true", True),
        ("enabled", "False", False),
        ("enabled", "off", False),
        ("rank", "4", 4),
        ("limit", "9", 9),
        ("limit", "null", None),
        ("rate", "1e-3", 0.001),
        ("rate", "2", 2.0),
        ("label", "123", "123"),
        ("label", "true", "true"),
        ("label", "a b # ${seed}", "a b # ${seed}"),
        ("mode", "on", "on"),
        ("anything", "4", "4"),
        ("where", "~/x", Path.home() / "x"),
    ],
)
def test_a_variable_is_read_as_the_type_of_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, text: str, value: object
) -> None:
    monkeypatch.setenv("X", text)
    entry = f"plugins: [weight_sync, {{use: '{PROBE}', {option}: '${{oc.env:X}}'}}]\n"
    (tmp_path / "a.yaml").write_text(BASE + entry)
    config = load_config(tmp_path / "a.yaml")
    item = config.plugins[1]
    assert (item.enabled if option == "enabled" else item.options[option]) == (
        str(value) if option == "where" else value
    )
    if option != "enabled":
        found = getattr(composition_of(config).plan.plugins[1].plugin, option)
        assert found == value
        assert type(found) is type(value)
    monkeypatch.delenv("X")
    (tmp_path / "b.yaml").write_text(dump(config))
    assert load_config(tmp_path / "b.yaml", overrides=["run.name=a"]).plugins == config.plugins


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("rank", "four", "expected int, found 'four' of the environment variable X"),
        ("rank", "1_0", "expected int, found '1_0' of the environment variable X; write 10"),
        ("rank", " ", "expected int, found ' ' of the environment variable X"),
        ("rank", "4.0", "expected int, found '4.0' of the environment variable X"),
        ("limit", "None", "expected int, found 'None' of the environment variable X; for no value, write null"),
        ("rate", "nan", "expected float, found 'nan' of the environment variable X; it must be finite"),
        ("mode", "of", "expected on or off, found 'of' of the environment variable X. Did you mean 'off'?"),
        ("label", "None", "expected str, found 'None' of the environment variable X; for no value, write null"),
    ],
)
def test_a_variable_of_another_type_is_a_fault_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, text: str, message: str
) -> None:
    monkeypatch.setenv("X", text)
    (found,) = faults(tmp_path, BASE + f"plugins: [{{use: '{PROBE}', {option}: '${{oc.env:X}}'}}]\n")
    assert found.startswith(f"plugins[0].{option}: {message}")


def test_variables_of_components_are_saved_with_the_type_of_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("X", "3")
    text = PLUGINS.replace("digits: 3", "digits: '${oc.env:X}'").replace("n: 2", "n: '${oc.env:PSS,2}'")
    config = load(tmp_path, text)
    assert (config.task.options, config.rollout.options) == ({"digits": 3}, {"n": 2})
    assert "digits: 3\n" in dump(config)


def test_an_interpolation_in_a_flow_mapping_asks_for_quotes(tmp_path: Path) -> None:
    text = PLUGINS.replace("parameter_sync_step: 4", "parameter_sync_step: ${oc.env:PSS}")
    (message,) = faults(tmp_path, text)
    assert message.endswith("inside of { } and [ ], put an interpolation in quotes, as in {seed: '${oc.env:SEED}'}")
    (message,) = faults(tmp_path, PLUGINS + "run:\n  name: x\n  dir: [${seed}]\n")
    assert "put an interpolation in quotes" in message


def test_a_variable_is_never_interpolated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "${oc.env:PSS}")
    assert probe(tmp_path, "anything: ['${oc.env:X}', 'a-${oc.env:X}']").anything == [
        "${oc.env:PSS}",
        "a-${oc.env:PSS}",
    ]
