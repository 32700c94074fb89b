from pathlib import Path

import attrs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hooktrainer import Plugin
from hooktrainer.config import Config, ConfigWarning, config_from_mapping, dump, load_config
from hooktrainer.errors import ConfigError, PlanError
from hooktrainer.parts import build_entries, build_parts

BASE = """
task: {use: sort_digits, digits: 3}
model: decoder
rollout: {use: inline, n: 2}
optim: {lr: 0.001}
trainer: {total_steps: 2, train_batch_size: 32, ppo_mini_batch_size: 8, parameter_sync_step: 4}
"""
PLUGINS = BASE + "plugins: [metric_aggregation, weight_sync]\n"
TWO = BASE + "plugins: [{use: a, every: 1}, {use: b, every: 2}]\n"


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, *overrides: str) -> Config:
    return load_config(written(folder, text), overrides=overrides)


def faults(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides)
    return [str(fault) for fault in caught.value.faults]


@attrs.define(kw_only=True)
class Probe(Plugin):
    """Looks at what it was given."""

    rank: int = 1
    every: int = 5
    targets: list[str] = attrs.field(factory=list)
    params: dict[str, object] = attrs.field(factory=dict)

    def check(self, config: Config) -> list[str]:
        if self.rank > config.trainer.train_batch_size:
            return [f"rank {self.rank} is above train_batch_size {config.trainer.train_batch_size}"]
        return []


PROBE = f"{__name__}:Probe"


def probe(folder: Path, options: str, *overrides: str) -> Probe:
    entry = f"plugins: [{{use: '{PROBE}', {options}}}]\n"
    (found,) = build_entries(load(folder, BASE + entry, *overrides))
    assert isinstance(found.plugin, Probe)
    return found.plugin


# Numbers and text


def test_1e_3_is_a_number_from_a_file_an_override_and_plain_pyyaml(tmp_path: Path) -> None:
    text = PLUGINS.replace("lr: 0.001", "lr: 1e-3")
    assert yaml.safe_load(text)["optim"]["lr"] == "1e-3"
    for config in (
        load(tmp_path, text),
        load(tmp_path, PLUGINS.replace("lr: 0.001", "lr: 7"), "optim.lr=1e-3"),
        config_from_mapping(yaml.safe_load(text)),
    ):
        assert config.optim.lr == 0.001
        assert type(config.optim.lr) is float


def test_123E4_where_text_is_expected_is_kept_or_asks_for_quotes(tmp_path: Path) -> None:
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
    config = load(tmp_path, BASE + "plugins: [weight_sync, {use: validation, evrey: 5}]\n")
    with pytest.raises(ConfigError, match=r"^plugins\[1\]\.evrey: unknown key 'evrey'.* Did you mean 'every'\?$"):
        build_entries(config)


def test_a_valid_key_at_the_wrong_level_is_refused_with_the_right_path(tmp_path: Path) -> None:
    text = BASE + "plugins: [{use: validation, every: 5}]\nparameter_sync_step: 4\nn: 4\nevery: 5\n"
    assert [message.rpartition("Did you mean ")[2] for message in faults(tmp_path, text, "optim.total_steps=3")] == [
        "'trainer.parameter_sync_step'?",
        "'rollout.n'?",
        "'plugins.validation.every'?",
        "'trainer.total_steps'?",
    ]
    config = load(tmp_path, PLUGINS, "plugins.weight_sync.total_steps=3", "task.temperature=1")
    with pytest.raises(ConfigError) as caught:
        build_parts(config)
    first, second = map(str, caught.value.faults)
    assert first.startswith("plugins[1].total_steps:")
    assert first.endswith("Did you mean 'trainer.total_steps'?")
    assert second.startswith("task.temperature:")
    assert second.endswith("Did you mean 'rollout.temperature'?")


# Empty values


@pytest.mark.parametrize("text", ["plugins:\n", "plugins: []\n", "", "plugins: [{use: weight_sync, enabled: false}]\n"])
def test_no_plugins_load_with_one_warning_that_nothing_logs_or_syncs(tmp_path: Path, text: str) -> None:
    with pytest.warns(ConfigWarning, match="nothing logs, and nothing syncs") as caught:
        config = load(tmp_path, BASE + text)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert build_entries(config) == ()


@pytest.mark.parametrize(
    "item", ["validation", "validation:", "{use: validation}", "{use: validation, every: }", "{validation: }"]
)
def test_an_entry_without_options_has_the_defaults(tmp_path: Path, item: str) -> None:
    config = load(tmp_path, BASE + f"plugins:\n  - {item}\n")
    (entry,) = build_entries(config)
    assert (entry.name, entry.address, entry.plugin.every) == ("validation", "plugins[0]", 5)


def test_a_null_reserved_key_has_its_default_too(tmp_path: Path) -> None:
    (entry,) = load(tmp_path, BASE + "plugins: [{use: weight_sync, name: , enabled: , priority: }]").plugins
    assert (entry.name, entry.enabled, entry.priority, entry.options) == ("weight_sync", True, {}, {})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("", "plugins[1]: this item is empty; write a name, or a mapping with `use`"),
        ("3", "plugins[1]: expected a name or a mapping with `use`, found 3 (int)"),
        ("[a]", "plugins[1]: expected a name or a mapping with `use`, found ['a'] (list)"),
        ("{}", "plugins[1]: `use` is missing, which says what this is; found an empty mapping"),
        ("{every: 3, size: 2}", "plugins[1]: `use` is missing, which says what this is; found every, size"),
        (
            "validation: {every: 5, size: 2}",
            "plugins[1]: options stand beside `use`, not below the name; write {use: validation, every: 5, size: 2}",
        ),
        (
            "{name: logger, every: 1}",
            "plugins[1]: `name` only names the instance; what it is stands behind `use`, as in {use: logger}",
        ),
        ("{use: 3}", "plugins[1].use: expected str, found 3 (int); to keep it as text, put it in quotes"),
        ("{use: validation, 1: 2}", "plugins[1]: the names of options are text, found 1 (int)"),
    ],
)
def test_an_entry_that_names_nothing_is_a_fault_with_its_place(tmp_path: Path, item: str, message: str) -> None:
    assert message in faults(tmp_path, BASE + f"plugins:\n  - weight_sync\n  - {item}\n")


def test_a_plugin_list_that_is_no_list_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, BASE + "plugins: {use: validation}") == [
        "plugins: expected a list, found {'use': 'validation'} (dict)"
    ]


# Overrides


def test_overrides_find_a_plugin_by_place_or_by_name(tmp_path: Path) -> None:
    config = load(tmp_path, TWO, "plugins.0.every=5", "plugins[1].every=7")
    assert [entry.options["every"] for entry in config.plugins] == [5, 7]
    config = load(tmp_path, TWO, "plugins.b.every=7", "plugins.a.new=[1, 2]", "plugins.a.enabled=false")
    assert [dict(entry.options) for entry in config.plugins] == [{"every": 1, "new": [1, 2]}, {"every": 7}]
    assert [entry.enabled for entry in config.plugins] == [False, True]


def test_an_override_reaches_a_plugin_in_its_short_form(tmp_path: Path) -> None:
    config = load(tmp_path, PLUGINS, "plugins.weight_sync.x=1", "plugins.0=validation", "plugins.validation.every=3")
    assert [(entry.use, dict(entry.options)) for entry in config.plugins] == [
        ("validation", {"every": 3}),
        ("weight_sync", {"x": 1}),
    ]
    assert load(tmp_path, PLUGINS, "model.width=48").model.options == {"width": 48}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plugins.5.every=7", "plugins.5.every: there is no item 5: the list has length 2, and places count from 0"),
        ("plugins[2].every=7", "plugins[2].every: there is no item 2: the list has length 2, and places count from 0"),
        ("plugins.-1.every=7", "plugins.-1.every: no plugin has the name '-1'; there are a, bb."),
        ("plugins.bbb.every=7", "plugins.bbb.every: no plugin has the name 'bbb'; there are a, bb. Did you mean 'bb'?"),
        ("plugins.0.l.x=1", "plugins.0.l.x: an item of a list is named by its place, found 'x'"),
        ("plugins.0.l.4=1", "plugins.0.l.4: there is no item 4: the list has length 1, and places count from 0"),
        ("seed", "seed: an override is written key=value, such as trainer.total_steps=10"),
        ("=3", "an override is written key=value, such as trainer.total_steps=10"),
        ("seed=[1,", "seed: '[1,' is not valid YAML"),
        ("seed.x=1", "seed: expected int, found {'x': 1} (dict)"),
        ("trainer=3", "trainer: expected a mapping of options, found 3 (int)"),
    ],
)
def test_an_override_that_leads_nowhere_is_a_fault(tmp_path: Path, override: str, message: str) -> None:
    text = BASE + "plugins: [{use: a, every: 1, l: [1]}, {use: bb, every: 2}]\n"
    assert faults(tmp_path, text, override) == [message]


def test_an_override_by_a_name_that_two_plugins_have_is_a_fault(tmp_path: Path) -> None:
    text = BASE + "plugins: [{use: a}, {use: b, name: a}]"
    assert faults(tmp_path, text, "plugins.a.x=1") == [
        "plugins.a.x: several plugins have the name 'a'; give each a `name`, or say which by its place: [0, 1]"
    ]


def test_an_override_of_a_list_that_is_not_there_names_its_length(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, BASE, "plugins.0.every=5")
    assert message.startswith("plugins.0.every: there is no item 0: the list has length 0")


def test_an_override_value_may_hold_an_equals_sign_or_nothing(tmp_path: Path) -> None:
    config = load(tmp_path, TWO, "plugins.a.expr=x=y", "trainer.total_steps=")
    assert config.plugins[0].options["expr"] == "x=y"
    assert config.trainer.total_steps is None


# Several files


def test_a_later_file_wins_and_replaces_lists_whole(tmp_path: Path) -> None:
    first = written(tmp_path, TWO, "first.yaml")
    second = written(tmp_path, "trainer: {total_steps: 9}\nplugins: [{use: c}]\n", "second.yaml")
    config = load_config(first, second)
    assert [entry.name for entry in config.plugins] == ["c"]
    assert (config.trainer.total_steps, config.trainer.train_batch_size) == (9, 32)
    assert config.run.name == "first"


def test_a_list_over_a_mapping_is_a_fault_with_both_files_in_view(tmp_path: Path) -> None:
    first = written(tmp_path, TWO, "first.yaml")
    second = written(tmp_path, "plugins: {a: {every: 3}}\n", "second.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(first, second)
    assert str(caught.value) == f"plugins: {second} has a mapping where an earlier file has a list"


def test_what_is_wrong_with_files_is_said_for_all_of_them_at_once(tmp_path: Path) -> None:
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
    assert found["number.yaml"].startswith("cannot be read: ")
    assert found["latin.yaml"].startswith("this is not UTF-8 text")
    assert found[tmp_path.name] == "this is a directory, not a YAML file"
    assert found["twize.yaml"] == "there is no such file. Did you mean 'twice.yaml'?"


def test_no_file_at_all_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config()


# Plain data


def test_a_plugin_gets_real_containers_of_its_own(tmp_path: Path) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', params: {{rank: 8, targets: [q, v]}}, targets: [q, v]}}]\n"
    config = load(tmp_path, text)
    (entry,) = build_entries(config)
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


def test_what_is_missing_or_leads_nowhere_is_said_with_its_address(tmp_path: Path) -> None:
    text = (
        BASE.replace("digits: 3", "digits: '???'") + "seed: ${nowhere}\nplugins: [{use: a, x: ['${trainer.nope}']}]\n"
    )
    assert faults(tmp_path, text) == [
        "task.digits: this value must be given; ??? only holds its place",
        "seed: Interpolation key 'nowhere' not found",
        "plugins[0].x[0]: Interpolation key 'trainer.nope' not found",
    ]
    assert load(tmp_path, text, "task.digits=2", "seed=1", "plugins.a.x=[]").task.options == {"digits": 2}


def test_an_interpolation_without_end_is_a_fault(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, PLUGINS + "seed: ${seed}\n")
    assert message.startswith("seed: ")


def test_a_mapping_from_python_is_not_changed_and_must_be_plain(tmp_path: Path) -> None:
    source = yaml.safe_load(PLUGINS)
    before = yaml.safe_load(PLUGINS)
    config = config_from_mapping(source, name="mine", overrides=["plugins.weight_sync.x=1"])
    assert source == before
    assert config.run.name == "mine"
    with pytest.raises(ConfigError, match="a configuration is plain data: Value 'object'"):
        config_from_mapping(source | {"seed": object()})


# Sections and what must fit together


def test_a_batch_that_is_no_whole_step_prints_the_three_numbers(tmp_path: Path) -> None:
    assert faults(tmp_path, PLUGINS, "trainer.train_batch_size=30") == [
        "trainer.train_batch_size: 30 is not parameter_sync_step x ppo_mini_batch_size = 4 x 8 = 32"
    ]


def test_a_capacity_below_a_mini_batch_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, PLUGINS, "replay.capacity=7") == ["replay.capacity: 7 groups cannot hold a mini-batch of 8"]
    assert load(tmp_path, PLUGINS, "replay.capacity=8").replay.capacity == 8


def test_all_faults_of_all_sections_are_found_at_once(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        PLUGINS,
        "seed=-1",
        "trainer.total_steps=0",
        "trainer.train_batch_size=30",
        "algorithm.adv_estimator=gpro",
        "optim.lr=fast",
        "run.name=a/b",
        "replay.sample_timeout_s=0",
        "plugins.weight_sync.name=a.b",
        "plugins.0.priority.step_end=early",
    )
    assert [message.partition(":")[0] for message in found] == [
        "algorithm.adv_estimator", "optim.lr", "trainer.total_steps", "trainer.train_batch_size",
        "replay.sample_timeout_s", "run.name", "plugins[0].priority.step_end", "plugins[1].name", "seed",
    ]  # fmt: skip


def test_resume_is_off_and_says_so_for_anything_else(tmp_path: Path) -> None:
    assert yaml.safe_load("off") is False
    assert load(tmp_path, PLUGINS + "run: {resume: off}").run.resume == "off"
    assert load(tmp_path, PLUGINS + "run: {resume: 'off'}").run.resume == "off"
    (message,) = faults(tmp_path, PLUGINS, "run.resume=auto")
    assert message.startswith("run.resume: expected off, found 'auto' (str). A run always starts anew; ")


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    assert faults(tmp_path, "seed: 1\nplugins: [weight_sync]\n") == [
        "task: missing; a value is required (Use)",
        "model: missing; a value is required (Use)",
        "rollout: missing; a value is required (Use)",
        "trainer: missing; a value is required (TrainerConfig)",
    ]


def test_the_run_is_named_after_the_file_and_kept_under_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, PLUGINS)
    assert (config.run.name, config.run.dir) == ("run", tmp_path / "runs")
    assert load(tmp_path, PLUGINS, "run.dir=elsewhere", "run.name=x").run.dir == tmp_path / "elsewhere"


# Written and read again


def test_a_dumped_configuration_loads_as_an_equal_one(tmp_path: Path) -> None:
    text = BASE + (
        "plugins:\n  - weight_sync\n"
        "  - {use: validation, name: often, every: 1, priority: {step_end: 450}, enabled: off}\n"
        "  - {use: mine.py:Probe, text: '\\${seed}', number: '1e-3', word: 'off', none: }\n"
    )
    config = load(tmp_path, text, "replay.sample_timeout_s=2.5", "optim.lr=1e-5")
    assert config.plugins[2].options == {"text": "${seed}", "number": "1e-3", "word": "off", "none": None}
    (tmp_path / "kept").mkdir()
    assert load_config(written(tmp_path / "kept", dump(config), "config.yaml")) == config


SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text("$\\{}ab:.#'\"- 1e\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), VALUES))
def test_any_plain_options_survive_a_dump(tmp_path_factory: pytest.TempPathFactory, options: dict[str, object]) -> None:
    config = config_from_mapping(yaml.safe_load(PLUGINS), name="config")
    entry = attrs.evolve(config.plugins[0], options={f"o_{key}": value for key, value in options.items()})
    config = attrs.evolve(config, plugins=(entry, *config.plugins[1:]))
    path = written(tmp_path_factory.getbasetemp(), dump(config), "config.yaml")
    assert load_config(path) == config


# Plugins and components


def test_entries_carry_name_address_and_priority_in_the_order_of_the_list(tmp_path: Path) -> None:
    text = BASE + (
        f"plugins: [weight_sync, {{use: validation, enabled: false}}, {{use: '{PROBE}', rank: 2}}, "
        "{use: validation, name: often, every: 1, priority: {evaluate: 450}}]\n"
    )
    entries = build_entries(load(tmp_path, text))
    assert [(entry.name, entry.address, dict(entry.priority)) for entry in entries] == [
        ("weight_sync", "plugins[0]", {}),
        ("probe", "plugins[2]", {}),
        ("often", "plugins[3]", {"evaluate": 450}),
    ]


def test_two_instances_of_one_class_need_two_names(tmp_path: Path) -> None:
    config = load(tmp_path, BASE + "plugins: [validation, {use: validation, every: 1}]")
    with pytest.raises(ConfigError) as caught:
        build_parts(config)
    assert str(caught.value).splitlines()[0] == (
        "plugins[1]: plugins[0] has the name 'validation' too; two instances of one class need two names, "
        "such as `name: validation_2`"
    )


def test_a_disabled_namesake_is_no_fault(tmp_path: Path) -> None:
    config = load(tmp_path, BASE + "plugins: [validation, {use: validation, every: 1, enabled: false}]")
    assert [entry.address for entry in build_entries(config)] == ["plugins[0]"]


def test_what_a_plugin_says_of_the_run_is_a_fault_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(tmp_path, "rank: 64")
    assert str(caught.value) == "plugins[0]: rank 64 is above train_batch_size 32"


def test_named_ports_take_registered_names(tmp_path: Path) -> None:
    def sinks(text: str) -> object:
        config = load(tmp_path, BASE + f"plugins: [{{use: log_after_collect, sinks: {text}}}]")
        return build_entries(config)[0].plugin.sinks

    assert sinks("[jsonl]") == ("jsonl",)
    assert sinks("[]") == ()
    assert sinks("") == ("console", "jsonl")
    for text, message in {
        "[consol, jsonl]": r"plugins\[0\]\.sinks\[0\]: no sink has the name 'consol'; .* Did you mean 'console'\?",
        "[jsonl, jsonl]": r"plugins\[0\]\.sinks\[1\]: 'jsonl' is listed twice",
        "console": r"plugins\[0\]\.sinks: expected a list, found 'console' \(str\); write \[console\]",
        "[1]": r"plugins\[0\]\.sinks\[0\]: expected str, found 1 \(int\)",
    }.items():
        with pytest.raises(ConfigError, match=message):
            sinks(text)


def test_faults_of_components_plugins_and_options_are_shown_together(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        BASE + "plugins: [metric_agregation, {use: validation, every: x}, {use: weight_sync, sise: 1}]",
        "task.use=sort_digit",
        "model.layers=0",
        "rollout.n=two",
    )
    with pytest.raises(ConfigError) as caught:
        build_parts(config)
    assert [fault.address for fault in caught.value.faults] == [
        "plugins[0]", "plugins[1].every", "plugins[2].sise", "task", "model.layers", "rollout.n"
    ]  # fmt: skip


def test_faults_of_the_plan_are_shown_with_those_of_components(tmp_path: Path) -> None:
    unordered = BASE + "plugins: [weight_sync, metric_aggregation, {use: log_after_collect, priority: {step_end: 150}}]"
    with pytest.raises(PlanError):
        build_parts(load(tmp_path, unordered))
    with pytest.raises(ConfigError) as caught:
        build_parts(load(tmp_path, unordered, "model.layers=0"))
    assert [fault.address for fault in caught.value.faults] == ["plugins[2]", "model.layers"]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("configs/*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_composes(path: Path) -> None:
    parts = build_parts(load_config(path))
    assert "weight_sync" in [entry.name for entry in parts.plan.entries]
