"""Ports of a model: the tokenizer that belongs to it, and the export of its weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol, runtime_checkable

from hooktrainer.ports.groups import Messages, Tokens


@runtime_checkable
class Tokenizer(Protocol):
    """Converts prompts to tokens and answers to text. It is picklable, for worker processes."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        ...

    @property
    def pad_id(self) -> int:
        """Token that fills rows of different lengths; no result depends on it."""
        ...

    @property
    def eos_ids(self) -> Collection[int]:
        """Tokens that end an answer."""
        ...

    def encode(self, prompt: str | Messages) -> Tokens:
        """Return the tokens of a prompt, ready to be answered. Raises `ConfigError` if it cannot be encoded."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """Return the text of an answer up to its first end token, as a reward function reads it."""
        ...


@runtime_checkable
class SupportsFileCheck(Protocol):
    """Options of a model that is read from files, so that a missing file is found before anything is loaded."""

    def check_files(self) -> None:
        """Raise `ConfigError` with each missing or damaged file, at its address, such as `model.path`.

        `hooktrainer plan` calls it, so it should import no torch.
        """
        ...


@runtime_checkable
class ModelExport(Protocol):
    """Writes the published weights of a run, and its tokenizer, into a folder that can be loaded again."""

    @property
    def version(self) -> int:
        """The step whose weights are published, -1 before the first."""
        ...

    def check(self) -> None:
        """Raise `ConfigError` if the model or the engine of this run cannot be exported."""
        ...

    def keep_adapters(self) -> None:
        """Copy the adapters of the weights that were just published, for `export`. Call it before the next update."""
        ...

    def export(self, folder: Path) -> None:
        """Write the folder, or replace it. Adapters are merged, and written to `adapter/` as well.

        Call it on the loop's thread, not during a weight sync.

        Raises `RunError` if it cannot be written; an earlier folder is unchanged then.
        """
        ...
