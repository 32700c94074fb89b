"""What sampler and learner ask of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

from torch import Tensor, nn


class Cache(Protocol):
    """What a model remembers of the tokens before, one row an answer."""

    def repeat(self, times: int) -> Self:
        """Every row `times` times, in place of itself; shares no memory with this one."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A decoder-only language model, as a module."""

    def __call__(
        self,
        tokens: Tensor,
        left_pad: Tensor | None = None,
        *,
        cache: Cache | None = None,
        logits_to_keep: int | None = None,
    ) -> Tensor:
        """Logits of the next token, shape (B, L, V); of the last `logits_to_keep` positions only if that is given.

        `tokens` has the shape (B, L). The first `left_pad` (B,) tokens of a row are padding, which nothing may depend
        on; None means no padding. With a `cache`, `tokens` continue those that it has seen; `left_pad` stays the same.
        """
        ...

    def new_cache(self, rows: int, length: int) -> Cache:
        """An empty cache for `rows` answers of at most `length` tokens, prompt and padding included."""
        ...


def full_state(module: nn.Module) -> Mapping[str, Tensor]:
    """All parameters and buffers by name, detached, not copied.

    Unlike a state dict this has non-persistent buffers too, so that nothing can drift apart between two modules. Tied
    tensors have all their names.
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named}
