"""Values of overrides, which are text as it is unless they are written in brackets, braces or quotes."""

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load

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
