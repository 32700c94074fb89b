"""Random changes of the shipped configurations: `plan` ends with a plan or with faults, in seconds."""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hooktrainer.cli import main
from hooktrainer.config.files import to_yaml

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
PLAIN = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in CONFIGS}
SECONDS = 5
"""Of processor time, so that other processes do not matter."""
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],  # shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)

ODD_TEXT = [
    "",
    " ",
    "None",
    "null",
    "off",
    "~",
    "???",
    "${seed}",
    "${run.name}",
    "${trainer}",
    "${",
    "\\${seed}",
    "${oc.env:HOME}",
    "${oc.env:NOWHERE}",
    "${oc.env:NOWHERE,3}",
    "${task.${model.use}}",
    "~nouser/x.py:X",
    "x.py:X",
    "os:system",
    "os.path:join",
    "hooktrainer.plugin:Plugin",
    "a: b",
    "#",
    "&x",
    "*x",
    "010",
    "1:30",
    "1_0",
    "1e400",
    "-1",
    "nan",
    "../..",
    "/",
    "\0",
    "\x85",
    "ü🐉",
    "a" * 3000,
    "9" * 5000,
]
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.0, -0.0, 1e-300, 1e300, float("inf"), float("nan"), True, False]
NESTED: list[Any] = [None, [], {}, [[]], {"a": {"b": [1]}}, [None], {"use": "x"}, {1: 2}, {"": ""}, ["console"] * 3]
WORDS = [
    "use",
    "name",
    "enabled",
    "priority",
    "every",
    "sinks",
    "size",
    "n",
    "workers",
    "plugins",
    "seed",
    "trainer",
    "x",
]
VALUES = st.one_of(
    st.sampled_from(ODD_TEXT),
    st.sampled_from(NUMBERS),
    st.sampled_from(NESTED),
    st.text(max_size=8),
    st.integers(-10, 10),
)
MUTATIONS = st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "delete", "rename", "double", "wrap"]), VALUES)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutate(data: Any, number: int, how: str, value: Any) -> None:
    found = list(places(data))
    if not found:
        return
    holder, key = found[number % len(found)]
    value = copy.deepcopy(value)  # hypothesis hands out the same containers again
    if how == "set":
        holder[key] = value
    elif how == "delete":
        del holder[key]
    elif how == "wrap":
        holder[key] = [holder[key], value] if number % 2 else {WORDS[number % len(WORDS)]: holder[key]}
    elif isinstance(holder, list):
        holder.append(holder[key])
    elif how == "rename":
        holder[value if isinstance(value, (str, int)) else "x"] = holder.pop(key)
    else:
        holder[f"{key}x"] = holder[key]


def plan(*arguments: str) -> None:
    """Run `hooktrainer plan`, and check how it ends."""
    out, err = io.StringIO(), io.StringIO()
    start = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main(["plan", *arguments])
        except SystemExit as error:  # argparse
            code = error.code
    took = time.process_time() - start
    assert code in (0, 2), (code, err.getvalue()[-3000:])
    assert "Traceback" not in err.getvalue()
    assert took < SECONDS, (took, err.getvalue()[:1000])
    assert len(err.getvalue()) < 100_000


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@settings(FIXED, max_examples=1000)
@given(st.sampled_from(sorted(PLAIN)), st.lists(MUTATIONS, min_size=1, max_size=4))
def test_plan_of_a_mutated_configuration_ends_with_a_plan_or_with_faults(name: str, mutations: list[Any]) -> None:
    data = yaml.safe_load(yaml.safe_dump(PLAIN[name]))
    for mutation in mutations:
        mutate(data, *mutation)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        text = yaml.safe_dump(data, allow_unicode=True) if len(mutations) % 2 else to_yaml(data).replace("\\${", "${")
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        plan(str(path))


KEYS = st.one_of(
    st.sampled_from(
        [
            f"{section}.{key}"
            for data in PLAIN.values()
            for section, keys in data.items()
            if isinstance(keys, dict)
            for key in keys
        ]
        + [f"plugins.{index}.{word}" for index in range(6) for word in WORDS]
        + [f"plugins.validation.{word}" for word in WORDS]
        + [
            "seed",
            "task",
            "model",
            "rollout",
            "algorithm",
            "trainer",
            "plugins",
            "plugins.0",
            "run",
            "run.name",
            "run.dir",
        ]
        + [
            "run.resume",
            "replay.capacity",
            "critic.use",
            "algorithm.adv_args",
            "rollout.use",
            "task.use",
            "plugins[1].use",
        ]
    ),
    st.text(max_size=12),
)
TEXTS = st.one_of(
    VALUES.map(str), st.sampled_from(["[1, 2]", "{a: b}", "[", "{use: staleness}", "'x'", '"', "[*a]"]), st.text()
)


@pytest.mark.slow
@settings(FIXED, max_examples=500)
@given(st.sampled_from(CONFIGS), st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=3))
def test_plan_with_random_overrides_ends_with_a_plan_or_with_faults(
    path: Path, overrides: list[tuple[str, str]]
) -> None:
    plan(str(path), *(f"{key}={text}" for key, text in overrides))
