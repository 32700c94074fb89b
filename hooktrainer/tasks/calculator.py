"""The task of multiplying with a tool: the answer to `47*83=` is the call `c47*83`, and `3901` in the next turn."""

from __future__ import annotations

import re
from typing import Final

import attrs
import numpy as np
from attrs.validators import ge, instance_of, le

from hooktrainer.ports import Answer, Environment, Example, Score
from hooktrainer.tasks.generated import GeneratedTask

_CALL: Final = re.compile(r"c(\d{1,9})\*(\d{1,9})", re.ASCII)
NO_CALL: Final = "?"
"""The reply to a call that cannot be read."""


@attrs.define
class CalculatorEnvironment:
    """A calculator that can be called once, in the first turn."""

    example: Example | None = None
    call: str = ""

    def reset(self, example: Example) -> str:
        """Return the prompt."""
        self.example, self.call = example, ""
        return example.text

    def step(self, answer: Answer) -> str | Score:
        """Reply to a call with its result, and to an answer with its score."""
        assert self.example is not None
        if answer.turn == 0 and answer.text.startswith("c") and not answer.last:
            self.call = answer.text
            found = _CALL.fullmatch(answer.text)
            return str(int(found[1]) * int(found[2])) if found else NO_CALL
        called = _share(self.call, f"c{self.example.text.rstrip('=')}")
        right = _share(answer.text, self.example.row["truth"])
        metrics = {"called": called == 1.0, "right": right}
        return Score((called + right * (called == 1.0)) / 2, exact=right == 1.0, metrics=metrics)


@attrs.frozen(kw_only=True)
class Calculator(GeneratedTask):
    """Multiply two numbers with a calculator. Half of the score is for the call, half for the answer after it."""

    digits: int = attrs.field(default=2, validator=[instance_of(int), ge(1), le(9)])
    """Digits of each number."""

    @property
    def alphabet(self) -> str:
        """The digits, and the characters of a call and a prompt."""
        return "0123456789*=c?"

    @property
    def longest_prompt(self) -> int:
        """Length of two numbers and both signs."""
        return 2 * self.digits + 2

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Return a product and its result."""
        first, second = (int(number) for number in rng.integers(10 ** (self.digits - 1), 10**self.digits, size=2))
        return f"{first}*{second}=", str(first * second)

    def environment(self, example: Example) -> Environment:  # noqa: ARG002 (all are equal)
        """Return a calculator for one answer."""
        return CalculatorEnvironment()


def _share(text: str, truth: str) -> float:
    """Return the share of correct positions, relative to the longer of both texts."""
    right = sum(one == other for one, other in zip(truth, text, strict=False))
    return right / max(len(truth), len(text), 1)
