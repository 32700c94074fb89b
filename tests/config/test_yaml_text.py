"""Scalars and documents of YAML, as a configuration reads them."""

from pathlib import Path

import pytest
import yaml

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load
from hooktrainer.config.yaml_text import YamlError, read_yaml, write_yaml
from hooktrainer.errors import ConfigError
from hooktrainer.run.loading import config_from_mapping, load_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("Yes", "Yes"),
        ("true", True),
        ("010", "010"),
        ("0", 0),
        ("-12", -12),
        ("0x10", 16),
        ("0o17", "0o17"),
        ("1:30", "1:30"),
        ("1_0", "1_0"),
        ("1e-3", 0.001),
        ("123E4", 1230000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("2024-01-02", "2024-01-02"),
        ("~", None),
        ("None", "None"),
        ("=", "="),
        ("9" * 5000, "9" * 5000),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = read_yaml(f"key: {text}\n")["key"]
    assert found == value
    assert type(found) is type(value)


STRATEGY = "plugins: [weight_sync, {use: staleness, max_off_policy_strategy: VALUE}]\n"
CHECKPOINT = "plugins: [weight_sync, {use: checkpoint, OPTION: 'None'}]\n"
SINKS = "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: VALUE}]\n"
RESUME = "Union[Literal['off', 'auto'], pathlib.Path]"
NO_VALUE = "found 'None' (str); for no value, write null without quotes"


@pytest.mark.parametrize("value", ["off", "on", "no", "yes", "false", "true"])
def test_an_unknown_choice_that_yaml_1_1_reads_as_a_boolean_lists_the_choices(tmp_path: Path, value: str) -> None:
    for sections in (BASE + STRATEGY.replace("VALUE", value), PLUGINS + f"algorithm: {{adv_estimator: {value}}}\n"):
        for found in (faults(tmp_path, sections), faults_of_plain(sections)):
            (message,) = found
            assert ("There are" in message) or ("there are" in message)
            assert ("requeue" in message) or ("reinforce_plus_plus" in message)
    (message,) = faults_of_plain(PLUGINS + f"algorithm: {{behaviour_weight: {value}}}\n")
    assert "here are none, " in message


def faults_of_plain(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(yaml.safe_load(text))
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (PLUGINS + "algorithm: {policy_loss: on}\n", "algorithm.policy_loss: no policy loss has the name 'on'; "),
        (PLUGINS.replace("total_steps: 2", "total_steps: 'None'"), f"trainer.total_steps: expected int, {NO_VALUE}"),
        (BASE + CHECKPOINT.replace("OPTION", "keep_last"), f"plugins[1].keep_last: expected int, {NO_VALUE}"),
        (BASE + CHECKPOINT.replace("OPTION", "keep_best"), f"plugins[1].keep_best: expected str, {NO_VALUE}"),
        (PLUGINS + "run: {name: None}\n", f"run.name: expected str, {NO_VALUE}"),
        (PLUGINS + "run: {dir: 'None'}\n", f"run.dir: expected Path, {NO_VALUE}"),
        (PLUGINS + "run: {resume: None}\n", f"run.resume: expected {RESUME}, {NO_VALUE}"),
        (PLUGINS + "run: {name: 'null'}\n", "run.name: expected str, found 'null' (str); for no value, write null"),
        (PLUGINS + "run: {name: '~'}\n", "run.name: expected str, found '~' (str); for no value, write null"),
        (PLUGINS + "seed: 010\n", "seed: expected int, found '010' (str); write 10, since YAML"),
        (PLUGINS.replace("digits: 3", "digits: 010"), "task.digits: expected int, found '010' (str); write 10"),
        (PLUGINS + "replay: {sample_timeout_s: 1:30}\n", "replay.sample_timeout_s: expected float, found '1:30' (str)"),
        (PLUGINS.replace("lr: 0.001", "lr: 1:30"), "optim.lr: expected float, found '1:30' (str); write one number"),
        (PLUGINS.replace("lr: 0.001", "lr: '1_0'"), "optim.lr: expected float, found '1_0' (str); write 10"),
        (PLUGINS.replace("lr: 0.001", "lr: .inf"), "optim.lr: expected float, found inf (float); it must be finite"),
        (PLUGINS.replace("lr: 0.001", "lr: .nan"), "optim.lr: expected float, found nan (float); it must be finite"),
        (PLUGINS.replace("lr: 0.001", "lr: '٣'"), "optim.lr: expected float, found '٣' (str)"),
        (PLUGINS.replace("lr: 0.001", "lr: ' 1 '"), "optim.lr: expected float, found ' 1 ' (str)"),
        (PLUGINS + "seed: 2024-01-02\n", "seed: expected int, found '2024-01-02' (str)"),
        (PLUGINS + f"seed: {'9' * 5000}\n", "seed: expected int, found '9999"),
        (BASE + SINKS.replace("VALUE", "off"), "plugins[2].sinks: expected a list, found 'off' (str); write [] for an"),
        (BASE + SINKS.replace("VALUE", "no"), "plugins[2].sinks: expected a list, found 'no' (str); write [] for an"),
        (BASE + SINKS.replace("VALUE", "None"), "plugins[2].sinks: expected a list, found 'None' (str); write []"),
        (BASE + SINKS.replace("VALUE", "false"), "plugins[2].sinks: expected a list, found False (bool); write [] for"),
        (BASE + SINKS.replace("VALUE", "on"), "plugins[2].sinks: expected a list, found 'on' (str); write [on]"),
        (BASE + SINKS.replace("VALUE", "[off]"), "plugins[2].sinks[0]: no sink has the name 'off'; there are console"),
        (BASE + SINKS.replace("VALUE", "[~]"), "plugins[2].sinks[0]: this item is empty; write a name, or"),
    ],
)  # fmt: skip
def test_a_scalar_that_yaml_1_1_reads_otherwise_is_refused(tmp_path: Path, sections: str, message: str) -> None:
    (found,) = faults(tmp_path, sections)
    assert found.startswith(message)
    assert len(found) < 700
    assert "[False]" not in found


def test_booleans_may_be_written_with_the_words_of_yaml_1_1(tmp_path: Path) -> None:
    text = BASE + f"plugins: [weight_sync, {{use: '{PROBE}', enabled: off, mode: on}}]\n"
    _, probe = load(tmp_path, text).plugins
    assert (probe.enabled, probe.options["mode"]) == (False, "on")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\n---\nseed: 2\n", "line 2, column 1: expected one document, found a second one; pass several files"),
        ("trainer:\n\ttotal_steps: 1\n", "line 2, column 1: not valid YAML: found character that cannot start any"),
        ("trainer: {seed: 1, seed: 2}\n", "line 1, column 20: not valid YAML: found duplicate key seed"),
        ("a: &a {x: 1}\nb: {<<: *a, x: 2, x: 3}\n", "line 2, column 19: not valid YAML: found duplicate key x"),
        ("seed: !!int x\n", "line 1, column 7: the tag tag:yaml.org,2002:int is not supported"),
        ("seed: !!python/name:os.system\n", "line 1, column 7: the tag tag:yaml.org,2002:python/name:os.system is not"),
        ("seed: *a\n", "line 1, column 7: not valid YAML: found undefined alias"),
        ("a: &a [*a]\n", "line 1, column 8: the alias *a is inside of the value that it refers to"),
        ("? [a]\n: 1\n", "line 1, column 3: not valid YAML: found unhashable key"),
        ("seed: \x00\n", "not valid YAML: unacceptable character"),
        ("seed: @x\n", "line 1, column 7: not valid YAML: found character that cannot start any token"),
        ("seed: 'a\n", "line 2, column 1: not valid YAML: found unexpected end of stream"),
        ("[" * 100_000, "mappings and lists are at most 50 levels deep"),
        ("[{a: " * 20_000, "mappings and lists are at most 50 levels deep"),
        ("- " * 100_000, "line 1, column 97: mappings and lists are at most 50 levels deep"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(1000)), "line 49, column 49: mappings and lists are"),
        ("a: " + "x" * 1_000_001, "a configuration has at most 1,000,000 characters, found 1,000,004"),
    ],
)  # fmt: skip
def test_a_document_that_is_not_valid_or_too_large_is_refused(text: str, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("item", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_that_would_grow_without_bound_are_refused(item: str) -> None:
    lines = [f"a{index}: &a{index} {item.format(', '.join([f'*a{index - 1}'] * 10))}\n" for index in range(1, 10)]
    with pytest.raises(YamlError, match="at most 20,000 values, and aliases count as copies"):
        read_yaml("a0: &a0 {x: 1}\n" + "".join(lines))


def test_a_long_chain_of_aliases_is_refused_as_too_deep() -> None:
    lines = [f"a{index}: &a{index} [*a{index - 1}]\n" for index in range(1, 2000)]
    with pytest.raises(YamlError, match="at most 50 levels deep"):
        read_yaml("a0: &a0 x\n" + "".join(lines))


def test_aliases_and_merge_keys_copy_what_they_refer_to(tmp_path: Path) -> None:
    text = f"""
plugins:
  - &first {{use: '{PROBE}', name: a, rank: 2, targets: &targets [q]}}
  - {{<<: *first, name: b}}
  - {{use: '{PROBE}', name: c, targets: *targets}}
"""
    config = load(tmp_path, BASE + text, "plugins.a.targets=[v]", "plugins.b.targets.0=k")
    assert [entry.options for entry in config.plugins] == [
        {"rank": 2, "targets": ["v"]},
        {"rank": 2, "targets": ["k"]},
        {"targets": ["q"]},
    ]


def test_a_tab_in_the_indentation_asks_for_spaces() -> None:
    with pytest.raises(YamlError, match="; indent with spaces, not with tabs$"):
        read_yaml("trainer:\n\ttotal_steps: 1\n")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (PLUGINS + "seed: 3\n").strip().encode())
    assert load_config(path).seed == 3


def test_text_is_written_so_that_every_reader_of_yaml_reads_it_as_text() -> None:
    words = ["off", "010", "1:30", "1e-3", "123E4", "null", "~", "1_0", "=", "<<", "0x1f", "2024-01-02", "???", "*a"]
    data = {"words": [*words, "", " a ", "a: b", "\t", "\x85", "ä"], "same": [words, words], "numbers": [1e-5, 3, None]}
    assert read_yaml(write_yaml(data)) == data
    assert yaml.safe_load(write_yaml(data)) == data
