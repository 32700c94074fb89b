"""The task of sorting digits: the answer to `407163>` is `013467`."""

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
        """The digits and the end mark of a prompt."""
        return "0123456789>"

    @property
    def longest_prompt(self) -> int:
        """Length of the digits and the mark."""
        return self.digits + 1

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Return random digits, and the digits in ascending order."""
        digits = "".join(map(str, rng.integers(10, size=self.digits)))
        return f"{digits}>", "".join(sorted(digits))
