import copy
import functools
import json
import math
import operator
import warnings
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.config_yaml import BASE, PLUGINS, PROBE, TWO, faults, load, written
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.run.directory import RunDirectory
from hooktrainer.run.loading import ConfigWarning, config_from_mapping, dump, load_config

# Sections and what must fit together


def test_train_batch_size_that_differs_from_the_product_is_a_fault_with_the_three_numbers(tmp_path: Path) -> None:
    assert faults(tmp_path, PLUGINS, "trainer.train_batch_size=30") == [
        "trainer.train_batch_size: 30 is not parameter_sync_step x ppo_mini_batch_size = 4 x 8 = 32"
    ]


def test_train_batch_size_of_one_mini_batch_is_a_fault_with_parameter_sync_step_4(tmp_path: Path) -> None:
    sizes = ("trainer.train_batch_size=8", "trainer.ppo_mini_batch_size=8", "trainer.parameter_sync_step=4")
    (message,) = faults(tmp_path, PLUGINS, *sizes)
    assert message.startswith("trainer.train_batch_size: 8 is not parameter_sync_step x ppo_mini_batch_size = 4 x 8")
    assert message.endswith(" = 32. Set parameter_sync_step: 1")


def test_capacity_below_the_mini_batch_size_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, PLUGINS, "replay.capacity=7") == ["replay.capacity: 7 groups cannot hold a mini-batch of 8"]
    assert load(tmp_path, PLUGINS, "replay.capacity=8").replay.capacity == 8


def test_faults_of_all_sections_are_reported_together(tmp_path: Path) -> None:
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
        "seed", "algorithm.adv_estimator", "optim.lr", "trainer.total_steps", "trainer.train_batch_size",
        "replay.sample_timeout_s", "run.name", "plugins[0].priority.step_end", "plugins[1].name",
    ]  # fmt: skip


def test_resume_is_off_auto_or_a_path(tmp_path: Path) -> None:
    assert yaml.safe_load("off") is False
    assert load(tmp_path, PLUGINS + "run: {resume: off}").run.resume == "off"
    assert load(tmp_path, PLUGINS + "run: {resume: 'off'}").run.resume == "off"
    restoring = PLUGINS.replace("weight_sync]", "weight_sync, checkpoint]")
    assert load(tmp_path, restoring + "run: {resume: auto}").run.resume == "auto"
    assert load(tmp_path, restoring, "run.resume=/runs/a").run.resume == Path("/runs/a")
    (message,) = faults(tmp_path, restoring, "run.resume=3")
    assert message.startswith("run.resume: expected ")
    assert message.endswith("It is off, auto, or the path of a checkpoint or of a run with checkpoints.")


def test_resume_without_the_checkpoint_plugin_is_a_fault(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, PLUGINS, "run.resume=auto")
    assert message == "run.resume: 'auto' (str), but no plugin restores a checkpoint. Add checkpoint to the plugins."


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    assert faults(tmp_path, "seed: 1\nplugins: [weight_sync]\n") == [
        "task: missing; a value is required (Use)",
        "model: missing; a value is required (Use)",
        "rollout: missing; a value is required (Use)",
        "trainer: missing; a value is required (TrainerConfig)",
    ]


def test_run_name_defaults_to_the_file_name_and_run_dir_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, PLUGINS)
    assert (config.run.name, config.run.dir) == ("run", tmp_path / "runs")
    assert load(tmp_path, PLUGINS, "run.dir=elsewhere", "run.name=x").run.dir == tmp_path / "elsewhere"


# Dump and load


def test_a_dumped_configuration_loads_as_an_equal_one(tmp_path: Path) -> None:
    text = BASE + (
        "plugins:\n  - weight_sync\n"
        "  - {use: validation, name: often, every: 1, priority: {step_end: 450}, enabled: off}\n"
        f"  - {{use: '{PROBE}', params: {{text: '\\${{seed}}', number: '1e-3', word: 'off', none: }}}}\n"
    )
    config = load(tmp_path, text, "replay.sample_timeout_s=2.5", "optim.lr=1e-5")
    assert config.plugins[2].options["params"] == {"text": "${seed}", "number": "1e-3", "word": "off", "none": None}
    (tmp_path / "kept").mkdir()
    assert load_config(written(tmp_path / "kept", dump(config), "config.yaml")) == config


SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text("$\\{}ab:.#'\"- 1e\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), VALUES))
def test_dumped_plain_options_load_unchanged(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, object]
) -> None:
    config = config_from_mapping(yaml.safe_load(TWO), name="config")
    entry = attrs.evolve(config.plugins[0], options={"params": options})
    config = attrs.evolve(config, plugins=(entry, *config.plugins[1:]))
    path = written(tmp_path_factory.getbasetemp(), dump(config), "config.yaml")
    assert load_config(path) == config


# Arbitrary values

WHOLE = yaml.safe_load(
    PLUGINS.replace("weight_sync]", "{use: weight_sync, priority: {step_end: 300}}, {use: validation, every: 5}]")
    + "replay: {capacity: 64}\nrun: {name: x, dir: runs}\n"
)
ODD = [
    None, True, 0, -1, 1e99, math.nan, "", "a", "???", "${x}", "${task}", "${plugins}", "x:y", "x.py:Y", [], [[None]],
    {}, {"a": 1}, {1: 2}, {"use": 3}, {"use": "weight_sync"}, {"step_end": "REPORT"},
]  # fmt: skip


def paths(data: object, above: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from paths(value, (*above, key))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(paths(WHOLE))), st.sampled_from(ODD)), min_size=1, max_size=2))
def test_arbitrary_values_load_or_report_each_fault_once(odd: list[tuple[tuple, object]]) -> None:
    data = copy.deepcopy(WHOLE)
    for (*above, key), value in sorted(odd, key=lambda pair: -len(pair[0])):
        functools.reduce(operator.getitem, above, data)[key] = copy.deepcopy(value)
    faults: tuple[Fault, ...] = ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            config_from_mapping(data)
    except ConfigError as error:
        faults = error.faults
    assert len(set(faults)) == len(faults)


LONG = "é" * 121
NAMES = {
    "a" * 300: "has at most 240 bytes, found 300",
    LONG: "has at most 240 bytes, found 242",
    "a" * 241: "has at most 240 bytes, found 241",
    "a\0b": "is not empty and has no '/'",
    "a/b": "is not empty and has no '/'",
    "": "is not empty and has no '/'",
    ".": "is not empty and has no '/'",
    "..": "is not empty and has no '/'",
    "a.": "does not start or end with a dot",
    "...": "does not start or end with a dot",
    ".a.lock": "does not start or end with a dot",
    "a\n": "has no line breaks or other control characters",
    "a\rb": "has no line breaks or other control characters",
    "a\u2028b": "has no line breaks or other control characters",
    "a\x1b[31mb": "has no line breaks or other control characters",
    "a\x7f": "has no line breaks or other control characters",
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_a_name_of_a_run_that_no_directory_can_have_is_refused_by_the_plan(tmp_path: Path, name: str) -> None:
    (message,) = faults(tmp_path, PLUGINS, f"run.name={json.dumps(name)}")
    assert message.startswith("run.name: the name of a run is the name of its directory, ")
    assert NAMES[name] in message
    assert len(message) < 700


def test_a_name_of_the_longest_allowed_length_can_be_run_twice(tmp_path: Path) -> None:
    name = "é" * 120
    for _ in range(2):
        RunDirectory(tmp_path / name, {"config.yaml": ""}).release()
    config = load(tmp_path, PLUGINS, f"run.name={name}")
    assert config.run.name == name
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [name, f"{name}.1"]


def test_a_long_name_of_a_yaml_file_is_refused_as_the_name_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 245}.yaml"
    path.write_text(PLUGINS)
    with pytest.raises(ConfigError, match="run.name: .* has at most 240 bytes, found 245"):
        load_config(path)
    assert load_config(path, overrides=["run.name=a"]).run.name == "a"


@pytest.mark.parametrize("option", ["run.dir", "run.resume"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a\0b", "; a path has no zero byte"),
        ("a" * 300, "; the name of a file or directory has at most 255 bytes, found 300"),
        (f"x/{LONG}aaaaaaaaaaaaaaaa/y", "; the name of a file or directory has at most 255 bytes, found 258"),
        ("a/" * 3000, "; a path has at most 4095 bytes, found "),
    ],
)
def test_a_path_that_no_file_can_have_is_refused_by_the_plan(
    tmp_path: Path, option: str, path: str, message: str
) -> None:
    (found,) = faults(tmp_path, PLUGINS, f"{option}={json.dumps(path)}")
    assert found.startswith(f"{option}: expected ")
    assert message in found
