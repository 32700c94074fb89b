"""Pages for users of other trainers: their tables agree with the options that exist, and with the hints of errors."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import yaml

from helpers.option_paths import exists
from helpers.readmes import ROOT, blocks, fill
from hooktrainer.config.other_names import ABSENT, OPTIONS
from hooktrainer.ports import Answer
from hooktrainer.run.settings import settings_of
from hooktrainer.tasks.dataset import TRUTHS, Dataset
from hooktrainer.tasks.files.columns import MISSING, value_at
from hooktrainer.tasks.rewards import RewardOptions

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the pages are not among the tests")

_ROW = re.compile(r"^\| `([\w.]+)` \| (—|`[\w.]+`(?:, `[\w.]+`)*) \|(.*)\|$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


def keys_of_command(text: str) -> dict[str, object]:
    """Return the overrides of a command of verl."""
    pairs = [word.partition("=") for word in shlex.split(text.replace("\\\n", " ")) if "=" in word]
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def keys_of_script(text: str) -> dict[str, object]:
    """Return the arguments of the configuration and the trainer in a script of TRL; None for one that is computed."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    arguments = [
        argument
        for call in calls
        if ast.unparse(call.func) in {"GRPOConfig", "GRPOTrainer"}
        for argument in call.keywords
    ]
    return {
        str(argument.arg): argument.value.value if isinstance(argument.value, ast.Constant) else None
        for argument in arguments
        if argument.arg != "args"
    }


@attrs.frozen
class Page:
    """A page, and how it shows the configuration of the other trainer."""

    path: Path
    language: str
    keys_of: Callable[[str], Mapping[str, object]]

    def table(self) -> dict[str, tuple[str, ...]]:
        """Return the options for each key of the other trainer, none for a dash."""
        rows = _ROW.findall(self.path.read_text().partition("\n## Keys\n")[2])
        assert len({key for key, _, _ in rows}) == len(rows), "a key has two rows"
        return {key: tuple(_CODE.findall(options)) for key, options, _ in rows}

    def theirs(self) -> Mapping[str, object]:
        """Return the configuration of the other trainer."""
        return self.keys_of(blocks(self.path, self.language)[0].text)

    def ours(self) -> dict[str, Any]:
        """Return the same configuration here, each plugin as a mapping."""
        config: dict[str, Any] = yaml.safe_load(blocks(self.path, "yaml")[0].text)
        plugins = [{"use": entry} if isinstance(entry, str) else entry for entry in config["plugins"]]
        return config | {"plugins": plugins}

    def settings(self) -> dict[str, Any]:
        """Return the options that the configuration here sets, by path."""
        return settings_of(yaml.safe_dump(self.ours()))


PAGES = [
    Page(ROOT / "docs" / "from_verl.md", "bash", keys_of_command),
    Page(ROOT / "docs" / "from_trl.md", "py", keys_of_script),
]
on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)


def allowed(sentence: str) -> tuple[str, ...]:
    """Return the sections and options that a sentence of `ABSENT` names."""
    return tuple(re.findall(r"'([\w.]+)'", sentence))


def disagreements(table: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the rows that differ from the hint that an error gives for the key."""
    found = []
    for key, options in table.items():
        *sections, last = key.split(".")
        if last in OPTIONS and OPTIONS[last] not in options:
            found.append(f"{key}: the hint is {OPTIONS[last]}, the table has {options}")
        for part in {*sections, last} & ABSENT.keys():
            places = allowed(ABSENT[part])
            outside = [each for each in options if not f"{each}.".startswith(tuple(f"{place}." for place in places))]
            if outside:
                found.append(f"{key}: the hint for {part} names {places}, the table has {outside}")
    return found


@on_every_page
def test_every_row_of_the_table_is_read(page: Page) -> None:
    after = page.path.read_text().partition("\n## Keys\n")[2]
    lines = [line for line in after.splitlines() if line.startswith("|")]

    assert len(page.table()) == len(lines) - 2 > 40


@on_every_page
def test_every_option_of_a_page_exists(page: Page) -> None:
    text = page.path.read_text()
    sections = {path.partition(".")[0] for options in page.table().values() for path in options if "." in path}
    named = {path for options in page.table().values() for path in options}
    after = text.partition("\n## Keys\n")[2]
    named |= {
        path
        for _, _, differences in _ROW.findall(after)
        for path in re.findall(r"`(\w+\.\w+(?:\.\w+)?)(?:: [^`]*)?`", differences)
        if path.partition(".")[0] in sections
    }

    assert [path for path in sorted(named) if not exists(path)] == []


@on_every_page
def test_the_table_agrees_with_the_hints_of_errors(page: Page) -> None:
    assert disagreements(page.table()) == []


def test_every_key_with_a_hint_is_in_a_table() -> None:
    keys = {part for page in PAGES for key in page.table() for part in key.split(".")}

    assert sorted((OPTIONS.keys() | ABSENT.keys()) - keys) == []


@on_every_page
def test_every_key_of_their_configuration_is_translated(page: Page) -> None:
    table, settings, theirs = page.table(), page.settings(), page.theirs()

    def is_set(path: str) -> bool:
        return any(f"{each}.".startswith(f"{path}.") for each in settings)

    assert len(theirs) > 10
    assert [key for key in theirs if key not in table] == []
    assert [key for key in theirs if not all(map(is_set, table[key]))] == []


@on_every_page
def test_numbers_of_their_configuration_are_the_same_here_unless_the_row_explains_it(page: Page) -> None:
    settings, rows = page.settings(), _ROW.findall(page.path.read_text())
    explained = {key for key, _, differences in rows if differences.strip()}
    compared = {
        key: (value, [float(str(settings[path])) for path in page.table()[key]])
        for key, value in page.theirs().items()
        if _is_number(value) and key not in explained and all(path in settings for path in page.table()[key])
    }

    assert compared
    assert {key: pair for key, pair in compared.items() if any(each != float(str(pair[0])) for each in pair[1])} == {}


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


@on_every_page
def test_the_rewards_of_a_page_score_its_data(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, page.path)
    monkeypatch.chdir(tmp_path)
    options = page.ours()["task"]
    rewards = tuple(RewardOptions(**{**each, "use": str(tmp_path / each["use"])}) for each in options["rewards"])
    task = Dataset(path=Path(options["path"]), heldout_path=Path(options["heldout_path"]), rewards=rewards)
    example = task.train(seed=0)[0]
    truth = next(value for name in TRUTHS if (value := value_at(example.row, name)) is not MISSING)
    answers = [Answer(text, np.zeros(1, np.int64)) for text in (f"It is {truth}", "I do not know.")]

    found = task.score(example, answers)

    assert isinstance(found, Sequence)
    assert [score.value for score in found] == [1.0, 0.0]
    assert task.heldout(10)


class TestDisagreements:
    """Find rows that contradict a hint, in tables written for the test."""

    def test_another_option_than_that_of_the_hint_is_found(self) -> None:
        assert disagreements({"trainer.save_freq": ["plugins.checkpoint.every"]}) == []
        (found,) = disagreements({"trainer.save_freq": ["plugins.validation.every"]})
        assert found.startswith("trainer.save_freq: the hint is plugins.checkpoint.every")

    def test_an_option_for_a_key_without_one_is_found(self) -> None:
        assert disagreements({"trainer.nnodes": []}) == []
        assert len(disagreements({"trainer.nnodes": ["rollout.n"]})) == 1

    def test_an_option_outside_the_sections_of_the_hint_is_found(self) -> None:
        assert disagreements({"data.shuffle": ["task.shuffle"]}) == []
        assert len(disagreements({"data.shuffle": ["optim.lr"]})) == 1
