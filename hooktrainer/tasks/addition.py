"""Add two numbers: `58+7=` is answered by `65`. Prompts and answers differ in length."""

from __future__ import annotations

import attrs
import numpy as np
from attrs.validators import and_, ge, instance_of, le

from hooktrainer.tasks.generated import GeneratedTask


@attrs.frozen(kw_only=True)
class Addition(GeneratedTask):
    """Add two numbers."""

    digits: int = attrs.field(default=2, validator=and_(instance_of(int), ge(1), le(18)))
    """Digits of the largest number; 64-bit integers end the range."""

    @property
    def alphabet(self) -> str:
        """Digits and signs."""
        return "0123456789+="

    @property
    def longest_prompt(self) -> int:
        """Both numbers and the signs."""
        return 2 * self.digits + 2

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """A sum without and with its result."""
        first, second = (int(number) for number in rng.integers(10**self.digits, size=2))
        return f"{first}+{second}=", str(first + second)
