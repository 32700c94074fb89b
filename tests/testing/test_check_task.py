"""check_task: what it reports of a faulty task, and the tasks that it accepts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import Answer, Example, Score
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.calculator import Calculator
from hooktrainer.tasks.sort_digits import SortDigits
from hooktrainer.testing import check_task

_UNSEEDED = random.Random()


@attrs.frozen(kw_only=True)
class Repeat:
    """Repeat a number."""

    size = 50

    def train(self, seed: int) -> Iterator[Any]:
        for number in np.random.default_rng(seed).permutation(50).tolist():
            yield self.example(number)

    def heldout(self, size: int) -> Iterable[Any]:
        return [self.example(number) for number in range(50, 50 + min(size, 10))]

    def example(self, number: int) -> Any:
        return Example(f"{number}=", {"truth": str(number)}, number)

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[Any]:
        return [float(answer.text == example.row["truth"]) for answer in answers]


@attrs.frozen(kw_only=True)
class Characters(Repeat):
    """Repeat a number, for the built-in model."""

    alphabet = "0123456789="
    longest_prompt = 3


@attrs.frozen(kw_only=True)
class Echo(Characters):
    """Repeat a number to an environment, which replies once."""

    def environment(self, example: Example) -> Any:
        return EchoEnvironment(self, example)

    def reset(self, example: Example) -> Any:
        return example.prompt

    def step(self, answer: Answer) -> Any:
        return 1.0 if answer.last else "="


@attrs.define
class EchoEnvironment:
    task: Any
    example: Example

    async def reset(self, example: Example) -> Any:
        return self.task.reset(example)

    async def step(self, answer: Answer) -> Any:
        return self.task.step(answer)


def fault(parent: type[Any], /, **members: Any) -> type[Any]:
    """Return a task with other members."""
    return attrs.frozen(kw_only=True)(type("Faulty", (parent,), {"__doc__": "A task.", **members}))


def raising(error: BaseException) -> Any:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


def score_of(answer: Answer) -> float:
    return np.nan if not answer.text else 1.0


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (fault(Repeat, heldout=None), "is not a task: it has no heldout"),
        (type("Bare", (Repeat,), {}), "is not an attrs class, so it has no options"),
        (fault(Repeat, __doc__=None), "Faulty has no docstring"),
        (fault(Repeat, __annotations__={"base": int}, base=10), "no docstring under the option base"),
        (fault(Repeat, __attrs_post_init__=raising(ValueError("no file"))), "__init__ raises ValueError: no file"),
        (
            fault(Repeat, example=lambda self, number: {"prompt": str(number)}),
            r"training prompt 1 of epoch 1 is \{'prompt': .*\(dict\), expected an Example.*Example\(prompt, row\)",
        ),
        (fault(Repeat, train=raising(KeyError("text"))), "training prompt 1 of epoch 1 could not be read: KeyError"),
        (fault(Repeat, train=lambda self, seed: []), "train yields no example"),
        (fault(Repeat, heldout=lambda self, size: ["12"]), "held-out prompt 1 is '12' .str., expected an Example"),
        (
            fault(Repeat, example=lambda self, number: Example(f"{number}", {"truth": np.int64(number)})),
            r"has 'truth' = np.int64\(\d+\) \(int64\) in its row, expected a plain JSON value",
        ),
        (
            fault(Repeat, train=lambda self, seed: (self.example(_UNSEEDED.randrange(10**9)) for _ in range(50))),
            r"train\(0\) returns other examples the second time.*generator that is made from the seed",
        ),
        (
            fault(Repeat, heldout=lambda self, size: [self.example(50 + _UNSEEDED.randrange(10**9))]),
            r"heldout\(100\) returns other examples the second time",
        ),
        (
            fault(Repeat, heldout=lambda self, size: [self.example(n) for n in range(size)]),
            "heldout returns the prompt '.*=', which train yields, too",
        ),
        (
            fault(Repeat, heldout=lambda self, size: [self.example(number) for number in range(50, 60)]),
            r"heldout\(3\) returns more than 3 examples",
        ),
        (fault(Repeat, size=49), "size is 49, but train yields more: return the number of examples"),
        (fault(Repeat, size=60), "size is 60, but train yields 50"),
        (fault(Repeat, size="all"), "size is 'all', expected the number of training examples, or None"),
        (
            fault(Characters, example=lambda self, number: Example("0" * (number + 1), {"truth": ""})),
            r"training prompt \d+, '0.*', has \d+ tokens, more than longest_prompt = 3",
        ),
        (
            fault(Characters, example=lambda self, number: Example(f"{number}?")),
            r"training prompt 1 of epoch 1: '\?' in '\d+\?' is not in the alphabet",
        ),
        (
            fault(Repeat, score=lambda self, example, answers: [score_of(answer) for answer in answers]),
            r"Faulty.score returned nan for the answer '' to '\d+='; expected a finite number",
        ),
        (
            fault(Repeat, score=lambda self, example, answers: [1 / len(answer.text) for answer in answers]),
            r"Faulty.score, for the answers \[''.*raises ZeroDivisionError.*test_check_task.py, line \d+",
        ),
        (
            fault(Repeat, score=lambda self, example, answers: 1.0),
            "Faulty.score returned 1.0 for the .* answers to",
        ),
        (
            fault(Repeat, score=lambda self, example, answers: [None for _ in answers]),
            "Faulty.score returned None for the answer '' to .*; expected a finite number",
        ),
        (fault(Echo, environment=raising(OSError("no tool"))), "Faulty.environment raises OSError: no tool"),
        (fault(Echo, reset=raising(OSError("no tool"))), "EchoEnvironment.reset raises OSError: no tool"),
        (fault(Echo, reset=lambda self, example: "1"), "EchoEnvironment.reset returned '1', expected the prompt"),
        (fault(Echo, step=lambda self, answer: None), "EchoEnvironment.step returned None; expected an observation"),
        (fault(Echo, step=lambda self, answer: "?"), r"for the turn '': '\?' in '\?' is not in the alphabet"),
        (fault(Echo, step=lambda self, answer: np.inf), "EchoEnvironment.step returned inf"),
    ],
)
def test_check_task_reports_a_task_that_would_end_a_run(cls: type[Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_task(cls)


def test_prompts_are_measured_with_the_tokenizer_of_a_run() -> None:
    check_task(Repeat, tokenizer=CharTokenizer("0123456789="), max_prompt_length=3)
    with pytest.raises(AssertionError, match="has 3 tokens, more than max_prompt_length = 2"):
        check_task(Repeat, tokenizer=CharTokenizer("0123456789="), max_prompt_length=2)
    with pytest.raises(TypeError, match="pass the `tokenizer` of the model"):
        check_task(Repeat, max_prompt_length=2)


async def scores(task: Repeat, example: Example, answers: Sequence[Answer]) -> Sequence[Score]:
    return [Score(len(answer.text), metrics={"tokens": len(answer.tokens)}) for answer in answers]


@pytest.mark.parametrize(
    "cls",
    [
        Repeat,
        Characters,
        Echo,
        fault(Repeat, score=scores),
        fault(Repeat, size=None, train=lambda self, seed: (self.example(number) for number in itertools.count(100))),
        fault(Repeat, example=lambda self, number: Example([{"role": "user", "content": str(number)}], {"truth": ""})),
        fault(Echo, environment=lambda self, example: None),
        fault(Echo, step=raising(ValueError("a tool that refuses the turn"))),
    ],
)
def test_tasks_that_keep_the_contract_pass(cls: type[Any]) -> None:
    check_task(cls)


def test_built_in_tasks_pass() -> None:
    check_task(Addition)
    check_task(Calculator)
    check_task(SortDigits, size=20, digits=3)


def test_an_environment_is_closed_after_its_check() -> None:
    closed = []

    @attrs.define
    class Closing(EchoEnvironment):
        async def close(self) -> None:
            closed.append(self.example.prompt)

    check_task(fault(Echo, environment=lambda self, example: Closing(self, example=example)))
    assert closed
