"""Sort the digits of a number: `407163>` is answered by `013467`."""

from __future__ import annotations

import attrs
import numpy as np
from attrs.validators import ge, instance_of

from hooktrainer.tasks.generated import GeneratedTask


@attrs.frozen(kw_only=True)
class SortDigits(GeneratedTask):
    """Sort the digits of a number."""

    digits: int = attrs.field(default=6, validator=[instance_of(int), ge(1)])
    """Digits of a prompt."""

    @property
    def alphabet(self) -> str:
        """Digits, and the mark behind a prompt."""
        return "0123456789>"

    @property
    def longest_prompt(self) -> int:
        """The digits and the mark."""
        return self.digits + 1

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Digits in any order, and in ascending order."""
        digits = "".join(map(str, rng.integers(10, size=self.digits)))
        return f"{digits}>", "".join(sorted(digits))
