from pathlib import Path

import pytest
from omegaconf import OmegaConf

from helpers.config_yaml import BASE, PLUGINS, PROBE, faults, load, probe, written
from hooktrainer.run.loading import config_from_mapping, dump, load_config


def ten_times(key: str) -> str:
    return "".join(f"${{{key}}}" for _ in range(10))


def test_texts_of_ten_references_each_are_resolved_once_or_refused(tmp_path: Path) -> None:
    keys = "".join(f"b{index}: '{ten_times(f'b{index - 1}')}'\n" for index in range(5, 0, -1))
    found = faults(tmp_path, PLUGINS + keys + "b0: x\n")
    assert [message.partition(":")[0] for message in found] == ["b5", "b4", "b3", "b2", "b1", "b0"]
    assert all("unknown key" in message for message in found)
    text = (
        BASE + f"plugins: [{{use: '{PROBE}', params: {{b0: x, b1: '{ten_times('.b0')}', b2: '{ten_times('.b1')}'}}}}]\n"
    )
    (entry,) = load(tmp_path, text).plugins
    assert entry.options["params"] == {"b0": "x", "b1": "x" * 10, "b2": "x" * 100}


def test_texts_that_would_grow_without_bound_are_refused(tmp_path: Path) -> None:
    keys = "".join(f"b{index}: '{ten_times(f'b{index - 1}')}'\n" for index in range(9, 0, -1))
    found = faults(tmp_path, PLUGINS + keys + "b0: x\n")
    assert [message for message in found if "unknown key" not in message] == [
        "b6: the interpolations expand to more than 1,000,000 characters"
    ]


def test_mappings_that_would_grow_without_bound_are_refused(tmp_path: Path) -> None:
    keys = "".join(
        f"b{index}: [{', '.join([f'${{b{index - 1}}}'] * 10)}]\n".replace("${", "'${").replace("}", "}'")
        for index in range(9, 0, -1)
    )
    found = faults(tmp_path, PLUGINS + keys + "b0: x\n")
    (message,) = [message for message in found if "unknown key" not in message]
    assert message.endswith("the interpolations expand to more than 1,000,000 characters")


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "in reverse"])
def test_a_long_chain_of_references_is_refused_once(tmp_path: Path, step: int) -> None:
    keys = [f"b{index}: ${{b{index - 1}}}\n" for index in range(1, 2001)]
    found = faults(tmp_path, PLUGINS + "b0: x\n" + "".join(keys[::step]))
    (message,) = [message for message in found if "unknown key" not in message]
    assert message.endswith(" a chain of more than 20 interpolations")


def test_nested_relative_and_indexed_references_are_resolved(tmp_path: Path) -> None:
    options = (
        "anything: {key: total_steps, steps: '${trainer.${.key}}', same: '${..rank}', first: '${.list.0}', "
        "second: '${.list[1]}', list: [a, '${seed}'], text: 'n-${seed}-${.first}', plain: '\\${seed}', all: '${.list}'}"
    )
    found = probe(tmp_path, f"rank: 4, {options}", "seed=7")
    assert found.anything == {
        "key": "total_steps",
        "steps": 2,
        "same": 4,
        "first": "a",
        "second": 7,
        "list": ["a", 7],
        "text": "n-7-a",
        "plain": "${seed}",
        "all": ["a", 7],
    }


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("seed: ${seed}\n", ["seed: this interpolation refers to itself"]),
        ("seed: x${seed}${seed}\n", ["seed: this interpolation refers to itself"]),
        (
            "seed: ${run.name}\nrun: {name: '${seed}'}\n",
            [
                "seed: this interpolation refers to itself: seed -> run.name -> seed",
                "run.name: this interpolation refers to itself: seed -> run.name -> seed",
            ],
        ),
        ("seed: ${${seed}}\n", ["seed: this interpolation refers to itself"]),
        ("run: {name: 'a-${optim.grad_clip}'}\noptim: {grad_clip: }\n", "run.name: expected text or a number within"),
        ("run: {name: 'a-${trainer}'}\n", "run.name: expected text or a number within this text, found {'total_steps'"),
        ("seed: ${trainer.total_step}\n", "seed: Interpolation key 'trainer.total_step' not found. Did you"),
        ("seed: ${}\n", "seed: '${}' (str) is not a valid interpolation; write ${section.key} or ${oc.env:NAME}"),
        ("seed: '${a'\n", "seed: '${a' (str) is not a valid interpolation"),
        ("seed: ${nope:3}\n", "seed: there is no resolver 'nope'; write ${section.key} or ${oc.env:NAME}"),
        ("seed: ${oc.decode:'['}\n", "seed: ${oc.decode:...} failed: "),
        ("seed: ${...........trainer}\n", "seed: Interpolation key"),
        ("'${seed}': 1\n", ["${seed}: an interpolation can be a value, not a key", "${seed}: unknown key '${seed}'; "]),
    ],
)  # fmt: skip
def test_an_interpolation_without_a_value_is_a_fault(tmp_path: Path, text: str, messages: list[str] | str) -> None:
    found = faults(tmp_path, PLUGINS.replace("optim: {lr: 0.001}\n", "") + text)
    expected = [messages] if isinstance(messages, str) else messages
    assert len(found) == len(expected)
    assert all(message.startswith(start) for message, start in zip(found, expected, strict=True))


def test_resolvers_that_are_registered_with_omegaconf_can_be_used(tmp_path: Path) -> None:
    OmegaConf.register_resolver("twice", lambda value: 2 * value)
    try:
        config = load(tmp_path, PLUGINS + "seed: ${twice:${trainer.total_steps}}\n")
    finally:
        OmegaConf.clear_resolver("twice")
    assert config.seed == 4


def test_a_directory_and_a_run_with_the_text_of_an_interpolation_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "${b}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(MINE)
    path = written(folder, BASE + "plugins: [weight_sync, 'mine.py:Mine']\n", "${run}.yaml")
    config = load_config(path, overrides=["plugins.mine.every=3"])
    assert (config.run.name, config.plugins[1].use) == ("${run}", f"{folder}/mine.py:Mine")
    assert config.run.dir == folder / "runs"
    again = load_config(written(tmp_path, dump(config), "again.yaml"))
    assert (again.run, again.plugins) == (config.run, config.plugins)


MINE = """
import attrs
from hooktrainer import Plugin

@attrs.define(kw_only=True)
class Mine(Plugin):
    every: int = 1
"""


def test_a_mapping_that_holds_itself_is_a_fault() -> None:
    endless: dict[str, object] = {}
    endless["task"] = endless
    with pytest.raises(Exception, match="a configuration is plain data: mappings and lists are at most 50 levels deep"):
        config_from_mapping(endless)
