"""The task of reversing a word: the answer to `hello>` is `olleh`."""

from __future__ import annotations

import string

import attrs
import numpy as np
from attrs.validators import ge, instance_of

from hooktrainer.tasks.generated import GeneratedTask


@attrs.frozen(kw_only=True)
class Reverse(GeneratedTask):
    """Reverse a word."""

    letters: int = attrs.field(default=5, validator=[instance_of(int), ge(1)])
    """Letters of a prompt."""

    @property
    def alphabet(self) -> str:
        """The letters and the end mark of a prompt."""
        return f"{string.ascii_lowercase}>"

    @property
    def longest_prompt(self) -> int:
        """Length of the word and the mark."""
        return self.letters + 1

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Return a word of random letters, and the word reversed."""
        word = "".join(string.ascii_lowercase[place] for place in rng.integers(26, size=self.letters))
        return f"{word}>", word[::-1]
