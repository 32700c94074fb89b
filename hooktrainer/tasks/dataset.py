"""The task of a data file: prompts and truths are columns, and functions of the user score the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from attrs.validators import ge, min_len

from hooktrainer._util.registry import FILE, HINT, NAMES_A
from hooktrainer.errors import ConfigError
from hooktrainer.ports import Answer, Example, Score
from hooktrainer.tasks.examples import LazyExamples
from hooktrainer.tasks.files import Rows, first_row
from hooktrainer.tasks.files.columns import MISSING, missing_column, value_at
from hooktrainer.tasks.rewards import REWARDS, Names, RewardOptions, Rewards
from hooktrainer.tasks.split import Split, prompt_of

TRUTHS: Final = ("reward_model.ground_truth", "ground_truth", "truth", "answer", "solution")
"""Columns of the truth with `truth: auto`; the first one that there is."""
_LOADED: Final = ("_split", "_rewards")
"""Attributes that are not sent to worker processes, which only score."""


def _has_rows(_task: object, _field: object, path: Any) -> None:
    if path is not None:
        first_row(path)


def _is_share(_task: object, _field: object, value: float) -> None:
    if not isinstance(value, int) and not 0 <= value < 1:
        raise ValueError(f"expected a number of rows, or a share of at least 0 and below 1; found {value}")


def _is_column(task: Dataset, field: attrs.Attribute[Any], name: str | None) -> None:
    if name is None or (field.name == "truth" and name == "auto"):
        return
    row = _row_of(task)
    if row is not None and value_at(row, name) is MISSING:
        raise ConfigError(f"{task.path}: {missing_column(row, name)}")


def _are_bound(task: Dataset, _field: object, rewards: Sequence[RewardOptions]) -> None:
    row = _row_of(task)
    if row is not None:
        Rewards(rewards, Names(list(row), has_truth=_column_of_truth(task.truth, row) is not None))


def _row_of(task: Dataset) -> Mapping[str, Any] | None:
    """Return the first row; None if the file has a fault of its own."""
    try:
        return first_row(task.path)
    except ConfigError:
        return None


def _column_of_truth(option: str | None, row: Mapping[str, Any]) -> str | None:
    if option != "auto":
        return option
    return next((name for name in TRUTHS if value_at(row, name) is not MISSING), None)


@attrs.frozen(kw_only=True, slots=False)
class Dataset:
    """Prompts of a JSONL, Parquet or CSV file, or of a folder that `save_to_disk` of datasets wrote."""

    path: Path = attrs.field(validator=_has_rows, metadata={FILE: True})
    """File or folder, relative to the YAML file if it is there, or else to the working directory."""
    prompt: str = attrs.field(default="prompt", validator=_is_column)
    """Column of the prompt: a text, or a list of messages. A dot reaches into a column: `extra_info.question`."""
    truth: str | None = attrs.field(default="auto", validator=_is_column)
    """Column of the truth. `auto` is the first of reward_model.ground_truth, ground_truth, truth, answer and solution
    that there is; null is none."""
    rewards: tuple[RewardOptions, ...] = attrs.field(validator=[min_len(1), _are_bound], metadata={NAMES_A: REWARDS})
    """Reward functions, each with options or only by its name, `my_rewards.py:exact`. The score is the sum of
    their values, each times its weight."""
    heldout_count: int | float = attrs.field(
        default=0,
        alias="heldout",
        validator=[ge(0), _is_share],
        metadata={HINT: "It is a number of rows such as 256, or a share such as 0.05."},
    )
    """Rows that are held out for validation: a number, or a share. A checksum of the prompt chooses them, so that they
    depend only on the file, and no prompt is in both sets."""
    heldout_path: Path | None = attrs.field(default=None, validator=_has_rows, metadata={FILE: True})
    """File of the held-out rows, in place of `heldout`."""
    shuffle: bool = True
    """Whether each epoch has its own order of the rows, or that of the file."""

    @property
    def size(self) -> int:
        """Number of training examples, which are those of one epoch."""
        return len(self._split.training)

    @property
    def alphabet(self) -> str:
        """Characters of all prompts and truths, for the model that reads characters."""
        return "".join(sorted({letter for text in self._texts() for letter in text}))

    @property
    def longest_prompt(self) -> int:
        """Number of characters of the longest prompt."""
        return max(map(len, self._texts(with_truth=False)))

    def train(self, seed: int) -> Sequence[Example]:
        """Return the training examples in the order of a seed. A row is read when it is used."""
        numbers = self._split.training
        order = np.random.default_rng((3, seed)).permutation(numbers) if self.shuffle else numbers
        return LazyExamples(len(order), lambda place: self._example(self._split.rows, int(order[place])))

    def heldout(self, size: int) -> Sequence[Example]:
        """Return the first `size` held-out examples, which are the same for every seed; fewer if there are fewer."""
        numbers = self._split.heldout[:size].tolist()
        return tuple(self._example(self._split.heldout_rows, number) for number in numbers)

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[Score] | Awaitable[Sequence[Score]]:
        """Return the score of each answer; an awaitable of it if a reward function is asynchronous."""
        column = self._columns[1]
        return self._rewards.score(example, None if column is None else value_at(example.row, column), answers)

    def fingerprint(self) -> Mapping[str, str]:
        """Return a checksum of each file, by the option that names it."""
        return {f"{option} = {path.name}": digest for option, path, digest in self._files()}

    def __getstate__(self) -> dict[str, Any]:
        assert self._columns  # a worker process does not read the file
        return {key: value for key, value in vars(self).items() if key not in _LOADED}

    @cached_property
    def _columns(self) -> tuple[Names, str | None]:
        """The names that reward functions can use, and the column of the truth."""
        row = first_row(self.path)
        column = _column_of_truth(self.truth, row)
        return Names(list(row), has_truth=column is not None), column

    @cached_property
    def _rewards(self) -> Rewards:
        return Rewards(self.rewards, self._columns[0])

    @cached_property
    def _split(self) -> Split:
        return Split.of(
            self.path,
            prompt=self.prompt,
            truth=self._columns[1],
            heldout=self.heldout_count,
            heldout_path=self.heldout_path,
        )

    def _example(self, rows: Rows, number: int) -> Example:
        row = rows[number]
        prompt = prompt_of(row, self.prompt)
        assert prompt is not None  # every row was checked
        return Example(prompt, row, number)

    def _files(self) -> Sequence[tuple[str, Path, str]]:
        found: list[tuple[str, Path, str]] = [("path", self.path, self._split.rows.digest)]
        if self.heldout_path is not None:
            found.append(("heldout_path", self.heldout_path, self._split.heldout_rows.digest))
        return found

    def _texts(self, *, with_truth: bool = True) -> Sequence[str]:
        """Return all prompts and truths as text. Raises `ConfigError` for a prompt of messages."""
        examples = [*self.train(0), *self.heldout(len(self._split.heldout))]
        for example in examples:
            if not isinstance(example.prompt, str):
                text = "its prompts are messages, which a model that reads characters cannot take"
                raise ConfigError(f"{text}. Use `model: {{use: huggingface, path: ...}}`")
        column = self._columns[1] if with_truth else None
        truths = [str(value_at(example.row, column)) for example in examples] if column else []
        return [*(example.text for example in examples), *truths]
