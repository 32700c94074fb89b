from pathlib import Path

import pytest
import yaml

from helpers.config_yaml import BASE, PLUGINS, PROBE, TWO, faults, load, probe, written
from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping, load_config

# Overrides


def test_override_addresses_a_plugin_by_index_or_name(tmp_path: Path) -> None:
    config = load(tmp_path, TWO, "plugins.0.every=5", "plugins[1].every=7")
    assert [entry.options["every"] for entry in config.plugins] == [5, 7]
    config = load(tmp_path, TWO, "plugins.b.every=7", "plugins.a.targets=[q, v]", "plugins.a.enabled=false")
    assert [dict(entry.options) for entry in config.plugins] == [{"every": 1, "targets": ["q", "v"]}, {"every": 7}]
    assert [entry.enabled for entry in config.plugins] == [False, True]


def test_override_sets_options_of_a_plugin_listed_by_name_only(tmp_path: Path) -> None:
    overrides = ["plugins.weight_sync.name=sync", "plugins.0=validation", "plugins.validation.every=3"]
    config = load(tmp_path, PLUGINS, *overrides)
    assert [(entry.use, entry.name, dict(entry.options)) for entry in config.plugins] == [
        ("validation", "validation", {"every": 3}),
        ("weight_sync", "sync", {}),
    ]
    assert load(tmp_path, PLUGINS, "model.width=48").model.options == {"width": 48}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plugins.5.every=7", "plugins.5.every: there is no item 5: the list has length 2, and indices count from 0"),
        ("plugins[2].every=7", "plugins[2].every: there is no item 2: the list has length 2, and indices count from 0"),
        ("plugins.-1.every=7", "plugins.-1.every: no plugin has the name '-1'; there are a, bb."),
        ("plugins.bbb.every=7", "plugins.bbb.every: no plugin has the name 'bbb'; there are a, bb. Did you mean 'bb'?"),
        ("plugins.0.targets.x=1", "plugins.0.targets.x: an item of a list is addressed by its index, found 'x'"),
        (
            "plugins.0.targets.4=1",
            "plugins.0.targets.4: there is no item 4: the list has length 1, and indices count from 0",
        ),
        ("seed", "seed: an override is written key=value, such as trainer.total_steps=10"),
        ("=3", "an override is written key=value, such as trainer.total_steps=10"),
        ("seed=[1,", "seed: '[1,' is not valid YAML"),
        ("seed.x=1", "seed: expected int, found {'x': 1} (dict)"),
        ("trainer=3", "trainer: expected a mapping of options, found 3 (int)"),
    ],
)
def test_override_with_an_invalid_key_or_value_is_a_fault(tmp_path: Path, override: str, message: str) -> None:
    entry = f"use: '{PROBE}', targets: [q]"
    text = BASE + f"plugins: [{{{entry}, name: a}}, {{{entry}, name: bb}}]\n"
    assert faults(tmp_path, text, override) == [message]


def test_override_by_a_name_of_two_plugins_is_a_fault(tmp_path: Path) -> None:
    first, second = faults(tmp_path, TWO.replace("name: b", "name: a"), "plugins.a.every=1")
    expected = "several plugins have the name 'a'; give each a `name`, or use one of the indices [0, 1]"
    assert first == f"plugins.a.every: {expected}"
    assert second.startswith("plugins[1]: plugins[0] is named 'a' too")


def test_override_of_a_missing_list_reports_length_0(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, BASE, "plugins.0.every=5")
    assert message.startswith("plugins.0.every: there is no item 0: the list has length 0")


def test_override_value_may_contain_an_equals_sign_or_be_empty(tmp_path: Path) -> None:
    config = load(tmp_path, TWO, "plugins.a.anything=x=y", "trainer.total_steps=", "task.size=64")
    assert config.plugins[0].options["anything"] == "x=y"
    assert config.trainer.total_steps is None


# Several files


def test_later_file_overrides_values_and_replaces_whole_lists(tmp_path: Path) -> None:
    first = written(tmp_path, TWO, "first.yaml")
    second = written(tmp_path, "trainer: {total_steps: 9}\nplugins: [weight_sync]\n", "second.yaml")
    config = load_config(first, second)
    assert [entry.name for entry in config.plugins] == ["weight_sync"]
    assert (config.trainer.total_steps, config.trainer.train_batch_size) == (9, 32)
    assert config.run.name == "first"


def test_mapping_in_place_of_a_list_of_an_earlier_file_is_a_fault(tmp_path: Path) -> None:
    first = written(tmp_path, TWO, "first.yaml")
    second = written(tmp_path, "plugins: {a: {every: 3}}\n", "second.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(first, second)
    assert str(caught.value) == f"plugins: {second} has a mapping where an earlier file has a list"


def test_faults_of_all_files_are_reported_together(tmp_path: Path) -> None:
    bad = {
        "twice.yaml": "seed: 1\nmodel: a\nseed: 2\n",
        "syntax.yaml": "seed: 1\ntrainer: [1\nmodel: a\n",
        "empty.yaml": "",
        "comments.yaml": "# nothing\n",
        "list.yaml": "- seed: 1\n",
        "number.yaml": "3\n",
    }
    paths = [written(tmp_path, text, name) for name, text in bad.items()]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("task: ä".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_config(*paths, latin, tmp_path, tmp_path / "twize.yaml")
    found = {Path(fault.address).name: fault.message for fault in caught.value.faults}
    assert found["twice.yaml"] == "line 3, column 1: not valid YAML: found duplicate key seed"
    assert found["syntax.yaml"].startswith("line 3, column 6: not valid YAML: ")
    assert found["empty.yaml"] == found["comments.yaml"] == "the file is empty"
    assert found["list.yaml"] == "the top level must be a mapping such as `trainer: ...`, found a list"
    assert found["number.yaml"] == "the top level must be a mapping such as `trainer: ...`, found only 3"
    assert found["latin.yaml"].startswith("this is not UTF-8 text")
    assert found[tmp_path.name] == "this is a directory, not a YAML file"
    assert found["twize.yaml"] == "there is no such file. Did you mean 'twice.yaml'?"


def test_load_config_without_a_file_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config()


# Plain data


def test_plugin_options_are_plain_containers_that_are_not_shared_with_the_config(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', params: {{rank: 8, targets: [q, v]}}, targets: [q, v]}}]\n"
    config = load(tmp_path, text)
    (entry,) = composition_of(config).plan.plugins
    for params, targets in (
        (entry.plugin.params, entry.plugin.params["targets"]),
        (config.plugins[0].options["params"], config.plugins[0].options["targets"]),
    ):
        assert isinstance(params, dict)
        assert isinstance(targets, list)
    entry.plugin.params["targets"].append("k")
    entry.plugin.params["rank"] = 0
    entry.plugin.targets.clear()
    assert config.plugins[0].options == {"params": {"rank": 8, "targets": ["q", "v"]}, "targets": ["q", "v"]}


def test_interpolations_are_resolved_before_a_plugin_sees_them(tmp_path: Path) -> None:
    found = probe(tmp_path, "params: {steps: '${trainer.total_steps}', all: '${trainer}'}", "trainer.total_steps=7")
    assert found.params["steps"] == 7
    assert found.params["all"] == yaml.safe_load(BASE)["trainer"] | {"total_steps": 7}


def test_missing_values_and_unresolved_interpolations_are_reported_with_their_address(tmp_path: Path) -> None:
    text = (
        BASE.replace("digits: 3", "digits: '???', sise: 1")
        + f"seed: ${{nowhere}}\nplugins: [{{use: '{PROBE}', targets: ['${{trainer.nope}}'], rank: x}}]\n"
    )
    found = faults(tmp_path, text)
    assert found[:2] + found[3:] == [
        "seed: Interpolation key 'nowhere' not found",
        "task.digits: a value is required in place of ???",
        "plugins[0].targets[0]: Interpolation key 'trainer.nope' not found",
        "plugins[0].rank: expected int, found 'x' (str)",
    ]
    assert found[2].startswith("task.sise: unknown key 'sise'")


def test_circular_interpolations_between_mappings_are_a_fault(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', params: PARAMS}}]\n"
    for params, places in (
        ("{a: {x: '${plugins.0.params.b}'}, b: {y: '${plugins.0.params.a}'}}", ["a.x", "b.y"]),
        ("{a: {b: '${plugins}'}}", ["a.b"]),
    ):
        found = faults(tmp_path, text.replace("PARAMS", params))
        assert [message.partition(":")[0] for message in found] == [f"plugins[0].params.{place}" for place in places]


def test_missing_value_is_reported_once_if_others_interpolate_it(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', params: '${{task}}', anything: ['${{task}}']}}]\n"
    assert faults(tmp_path, text, "task.digits=???") == ["task.digits: a value is required in place of ???"]


def test_interpolation_of_itself_is_a_fault(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, PLUGINS + "seed: ${seed}\n")
    assert message.startswith("seed: ")


def test_config_from_mapping_keeps_its_argument_and_accepts_plain_data_only(tmp_path: Path) -> None:
    source = yaml.safe_load(PLUGINS)
    before = yaml.safe_load(PLUGINS)
    config = config_from_mapping(source, name="mine", overrides=["plugins.weight_sync.name=sync"])
    assert source == before
    assert config.run.name == "mine"
    with pytest.raises(ConfigError, match="a configuration is plain data: Value 'object'"):
        config_from_mapping(source | {"seed": object()})


def test_later_file_that_names_a_task_discards_its_options_but_engines_keep_theirs(tmp_path: Path) -> None:
    first = written(tmp_path, PLUGINS)
    other = written(tmp_path, "task: {use: reverse, letters: 4}\nrollout: {use: thread, workers: 2}\n", "other.yaml")
    same = written(tmp_path, "task: {size: 9}\nrollout: {n: 4}\n", "same.yaml")

    config = load_config(first, other)
    assert (config.task.use, config.task.options) == ("reverse", {"letters": 4})
    assert (config.rollout.use, config.rollout.options) == ("thread", {"n": 2, "workers": 2})

    config = load_config(first, same)
    assert (config.task.use, config.task.options) == ("sort_digits", {"digits": 3, "size": 9})
    assert config.rollout.options == {"n": 4}


BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


@pytest.mark.parametrize("text", [BOM + PLUGINS, BOM + "# a comment\n" + PLUGINS, BOM + BOM + PLUGINS])
def test_a_byte_order_mark_at_the_start_of_a_file_is_accepted(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == load(tmp_path, PLUGINS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLUGINS + BOM + "seed: 1\n", 8),
        (PLUGINS + BOM, 8),
        (PLUGINS.replace("use: inline", f"use: {BOM}inline"), 4),
        (PLUGINS.replace("model: decoder", f"model: decoder{BOM}"), 3),
        ("# first\n" + BOM + "seed: 1\n", 2),
    ],
)
def test_a_byte_order_mark_inside_of_a_file_is_a_fault_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    path = tmp_path / "run.yaml"
    rule = (
        "there is a byte order mark (U+FEFF) here, which is invisible; it may only be the first character of the file"
    )
    assert str(caught.value) == f"{path}: line {line}: {rule}, so remove it"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_a_file_in_another_encoding_is_named_with_its_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "run.yaml"
    mark = "" if encoding in {"utf-16", "utf-32"} else BOM
    path.write_bytes((mark + PLUGINS).encode(encoding))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: this is {encoding[:6].upper()} text; save the file as UTF-8"


def test_an_invisible_character_in_an_override_is_shown(tmp_path: Path) -> None:
    for override in (f"{BOM}seed=1", "seed\u200b=1"):
        (message,) = faults(tmp_path, PLUGINS, override)
        assert "the address has an invisible character" in message
        assert ("'\\ufeffseed'" if BOM in override else "'seed\\u200b'") in message
