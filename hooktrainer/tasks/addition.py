"""The task of adding two numbers: the answer to `58+7=` is `65`. Prompts and answers vary in length."""

from __future__ import annotations

import attrs
import numpy as np
from attrs.validators import and_, ge, instance_of, le

from hooktrainer.tasks.generated import GeneratedTask


@attrs.frozen(kw_only=True)
class Addition(GeneratedTask):
    """Add two numbers."""

    digits: int = attrs.field(default=2, validator=and_(instance_of(int), ge(1), le(18)))
    """Digits of the largest number, at most 18, since numbers are 64-bit integers."""

    @property
    def alphabet(self) -> str:
        """The digits, plus and equals."""
        return "0123456789+="

    @property
    def longest_prompt(self) -> int:
        """Length of two numbers and both signs."""
        return 2 * self.digits + 2

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Return a sum and its result."""
        first, second = (int(number) for number in rng.integers(10**self.digits, size=2))
        return f"{first}+{second}=", str(first + second)
