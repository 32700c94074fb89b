"""What sampler and learner ask of a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, Self, runtime_checkable

from torch import Tensor, nn


class Cache(Protocol):
    """What a model remembers of the tokens before: one row an answer, each of its own length."""

    def append(self, other: Self, rows: Sequence[int]) -> None:
        """Copies of these rows of another cache, behind the own ones."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order, and forget the others."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A decoder-only language model, as a module."""

    def __call__(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Logits of the next token, shape (B, L, V); of the last `logits_to_keep` positions only if that is given.

        `tokens` has the shape (B, L). The first `left_pad` (B,) tokens of a row are padding, which nothing may depend
        on; None means no padding.
        """
        ...

    def new_cache(self, rows: int, length: int) -> Cache:
        """An empty cache for at most `rows` answers of at most `length` tokens, prompt included."""
        ...

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: Cache) -> Tensor:
        """Read B texts into an empty cache; logits of the token behind each, shape (B, V).

        `tokens` has the shape (B, L); what stands behind a row's length is padding, which nothing may depend on.
        """
        ...

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Read one more token (B,) of every row of a cache; logits of the token behind it, shape (B, V)."""
        ...


@runtime_checkable
class Trunk(Protocol):
    """What a model has beside that if a critic is to read its hidden states."""

    width: int
    """Numbers in one state."""

    def hidden(self, tokens: Tensor, left_pad: Tensor | None = None, *, states_to_keep: int | None = None) -> Tensor:
        """States behind each token, shape (B, L, width), of the last `states_to_keep` positions only if that is given.

        `tokens` and `left_pad` are those of `Policy`.
        """
        ...

    def project(self, states: Tensor) -> Tensor:
        """The logits that a call would give, from states, shape (..., width) -> (..., V)."""
        ...


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Nothing drops out of these modules inside of it; afterwards every part is in the mode that it was in."""
    training = [part for module in modules for part in module.modules() if part.training]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part in training:
            part.training = True


def full_state(module: nn.Module) -> Mapping[str, Tensor]:
    """All parameters and buffers by name, detached, not copied.

    Unlike a state dict this has non-persistent buffers too, so that nothing can drift apart between two modules. Tied
    tensors have all their names.
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named}
