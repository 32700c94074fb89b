"""Values of overrides, which are text as it is unless they are written in brackets, braces or quotes."""

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load, written
from hooktrainer.cli import main
from hooktrainer.run.loading import load_config

NAMES = [
    "exp #3",
    "&x",
    "*x",
    "!tag x",
    "%x",
    "@x",
    "`x`",
    "a: b",
    "- b",
    "it's",
    'a "b"',
    "a, b",
    "a]",
    "x=y",
    "|",
    "> x",
    "? x",
    "{x",
    "ü🐉",
    "a\\b",
    "010",
    "1:30",
    "1_0",
    "off",
    "a\tb",
]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "{x"])
def test_the_name_of_a_run_is_the_text_of_its_override(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, PLUGINS, f"run.name={name}").run.name == name
    assert load(tmp_path, PLUGINS, f"run.dir={tmp_path}/out {name}").run.dir == tmp_path / f"out {name}"


@pytest.mark.parametrize("directory", ["/a/out #3", "/a/&x", "/a/b: c"])
def test_the_directory_of_a_run_is_the_text_of_its_override(tmp_path: Path, directory: str) -> None:
    assert load(tmp_path, PLUGINS, f"run.dir={directory}").run.dir == Path(directory)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ('"exp #3"', "exp #3"),
        ("'&x'", "&x"),
        ('" x "', " x "),
        ("'123'", "123"),
        ("'it''s'", "it's"),
        ('"\\u00fc"', "ü"),
    ],
)
def test_quotes_inside_of_an_override_are_those_of_yaml(tmp_path: Path, value: str, name: str) -> None:
    assert load(tmp_path, PLUGINS, f"run.name={value}").run.name == name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.name= x", "run.name: ' x' begins or ends with a blank; remove it, or put quotes around it: '\"...\"'"),
        ("run.name=x\n", "run.name: 'x\\n' begins or ends with a blank"),
        ("run.name= ", "run.name: ' ' begins or ends with a blank"),
        ("run.name={x", "run.name: '{x' is not valid YAML"),
        ("run.name='x", "run.name: ''x' is not valid YAML"),
        ('run.name="x" y', "run.name: '\"x\" y' is not valid YAML"),
        ("run.name='x' #3", "run.name: ''x' #3' would be cut at '#'; put text with this character in quotes"),
        ("plugins.a.targets=[a] #3", "plugins.a.targets: '[a] #3' would be cut at '#'"),
        ("plugins.a.targets=[&x a]", "plugins.a.targets: '[&x a]' would be cut at '&x'"),
        ("plugins.a.targets=[!x a]", "plugins.a.targets: '[!x a]' is not valid YAML"),
        ("plugins.a.targets=[*x]", "plugins.a.targets: '[*x]' is not valid YAML"),
        ("plugins.a.targets=[a #b]", "plugins.a.targets: '[a #b]' is not valid YAML"),
        ("plugins.a.targets=[${seed}]", "plugins.a.targets: '[${seed}]' is not valid YAML; inside of [ ]"),
        ("trainer.total_steps=[1", "trainer.total_steps: '[1' is not valid YAML"),
        ("trainer.total_steps =10", "trainer.total_steps : an override has no blanks around its '='; write"),
        ("--trainer.total_steps=10", "--trainer.total_steps: an override has no dashes; write trainer.total_steps=..."),
        ("seed.x=1", "seed.x: seed is 3 (int), which has no keys; override it as a whole"),
        ("run.x=1", "run.x: run is '${trainer}' (str), which has no keys; override it as a whole"),
        ("a" + ".a" * 2000 + "=1", "a.a.a"),
    ],
)  # fmt: skip
def test_an_override_that_yaml_would_cut_or_that_overrides_nothing_is_a_fault(
    tmp_path: Path, override: str, message: str
) -> None:
    text = BASE + f"plugins: [{{use: '{PROBE}', name: a}}]\nseed: 3\n"
    (found,) = faults(tmp_path, text + ("run: ${trainer}\n" if "run.x" in override else ""), override)[:1]
    assert found.startswith(message)


def test_an_override_with_a_mapping_adds_to_the_one_that_is_there(tmp_path: Path) -> None:
    config = load(tmp_path, PLUGINS, "trainer={total_steps: 3, num_warmup_batches: 1}", "run={name: a}")
    assert (config.trainer.total_steps, config.trainer.train_batch_size, config.run.name) == (3, 32, "a")


def test_an_override_reaches_an_engine_that_the_file_only_names(tmp_path: Path) -> None:
    text = PLUGINS.replace("rollout: {use: inline, n: 2}", "rollout: thread")
    assert load(tmp_path, text, "rollout.n=2", "rollout.workers=2").rollout.options == {"n": 2, "workers": 2}


ALGORITHM = (
    "algorithm: {adv_args: {epsilon: 0.1}, rejection: {token_k2: 4.0, seq_sum_k3: 2.0}, proximal_policy: recompute}\n"
)


@pytest.mark.parametrize(
    ("overrides", "rejection"),
    [
        ([], {"token_k2": 4.0, "seq_sum_k3": 2.0}),
        (["algorithm.rejection={}"], {}),
        (["algorithm={rejection: {}}"], {}),
        (["algorithm.rejection={token_k2: 1.0}"], {"token_k2": 1.0, "seq_sum_k3": 2.0}),
        (["algorithm.rejection={}", "algorithm.rejection.token_k2=1.0"], {"token_k2": 1.0}),
        (["algorithm.rejection.token_k2=1.0", "algorithm.rejection={}"], {}),
        (["algorithm.rejection=null"], {}),
        (["algorithm={}"], {}),
    ],
)
def test_a_mapping_is_merged_and_an_empty_one_clears(
    tmp_path: Path, overrides: list[str], rejection: dict[str, float]
) -> None:
    algorithm = load(tmp_path, PLUGINS + ALGORITHM, *overrides).algorithm
    assert algorithm.rejection == rejection
    assert algorithm.adv_args == ({} if "algorithm={}" in overrides else {"epsilon": 0.1})


@pytest.mark.parametrize("empty", ["{policy_loss_args: {}, adv_args: {}}", "{}"])
def test_an_empty_mapping_of_a_later_file_clears_the_earlier_one(tmp_path: Path, empty: str) -> None:
    first = written(tmp_path, PLUGINS + "algorithm: {adv_args: {epsilon: 0.1}}\n", "a.yaml")
    second = written(tmp_path, f"algorithm: {empty}\n", "b.yaml")
    assert load_config(first, second).algorithm.adv_args == {}


def test_an_empty_mapping_clears_the_priorities_of_a_plugin(tmp_path: Path) -> None:
    text = BASE + "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, priority: {step_end: 650}}]\n"
    assert load(tmp_path, text, "plugins.log_after_collect.priority={}").plugins[2].priority == {}


SINKS = BASE + "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: ['missing.py:S']}]\n"


@pytest.mark.parametrize(
    ("text", "overrides", "base"),
    [
        (BASE + "plugins: [weight_sync, {use: 'missing.py:KL'}]\n", [], "configs"),
        (BASE + "plugins: [weight_sync, {use: 'sub/missing.py:KL'}]\n", [], "configs/sub"),
        (PLUGINS, ["plugins.0.use=missing.py:KL"], "."),
        (PLUGINS, ["task.use=missing.py:KL"], "."),
        (PLUGINS, ["algorithm.policy_loss=missing.py:loss"], "."),
        (SINKS, [], "configs"),
    ],
)
def test_a_file_that_is_missing_is_shown_with_the_rule_for_relative_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, overrides: list[str], base: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (found,) = faults(tmp_path / "configs", text, *overrides)
    path = (tmp_path / base / "missing.py").resolve()
    rule = (
        "A relative file in YAML is relative to the YAML file; in an override or a command, to the working directory."
    )
    assert f"there is no file {path}. {rule}" in found


def test_help_describes_how_overrides_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "a mapping is merged with the earlier one, {} clears it, and a list replaces the earlier one" in text
    assert "file.py:Name in an override is relative to the working directory, as all paths are" in text
