"""Protocols of a language model that sampler and learner use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor, nn

T = TypeVar("T")


class Cache(Protocol):
    """Cache of processed tokens, one row per sequence; lengths differ."""

    def append(self, other: Self, rows: Sequence[int]) -> None:
        """Append copies of these rows of another cache."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order, and drop the others."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Decoder-only language model, an `nn.Module`."""

    def __call__(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Return logits of the next token, shape (B, L, V), or of the last `logits_to_keep` positions only.

        `tokens` has the shape (B, L). The first `left_pad` (B,) tokens of a row are padding, on which no logits may
        depend; None means no padding.
        """
        ...

    def new_cache(self, rows: int, length: int) -> Cache:
        """Return an empty cache for at most `rows` sequences of at most `length` tokens, prompt included."""
        ...

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: Cache) -> Tensor:
        """Process B texts into an empty cache; return logits of the next token of each, shape (B, V).

        `tokens` has the shape (B, L). Tokens after a row's length are padding, on which no logits may depend.
        """
        ...

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Process one more token (B,) for every row of a cache; return logits of the next token, shape (B, V)."""
        ...


@runtime_checkable
class Trunk(Protocol):
    """Additional methods of a model, whose logits are then computed in chunks, and whose states a critic uses."""

    width: int
    """Size of one hidden state."""

    def hidden(self, tokens: Tensor, left_pad: Tensor | None = None, *, states_to_keep: int | None = None) -> Tensor:
        """Return the state after each token, shape (B, L, width), or of the last `states_to_keep` positions only.

        `tokens` and `left_pad` are as in `Policy`.
        """
        ...

    def project(self, states: Tensor) -> Tensor:
        """Return the logits for these states, shape (..., width) -> (..., V)."""
        ...


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules in eval mode for the block, and restore the mode of every submodule afterwards."""
    training = [part for module in modules for part in module.modules() if part.training]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part in training:
            part.training = True


def as_forward(module: nn.Module, function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a function as the forward pass of a module, so that hooks on the module run, such as those of FSDP."""
    own = vars(module).get("forward")

    def redirected(*args: Any, **options: Any) -> T:
        restore()  # the function may call the module
        return function(*args, **options)

    def restore() -> None:
        if own is not None:
            module.forward = own
        elif "forward" in vars(module):
            del module.forward

    module.forward = redirected
    try:
        return module(*args, **options)  # type: ignore[no-any-return]
    finally:
        restore()


def full_state(module: nn.Module) -> Mapping[str, Tensor]:
    """Return all parameters and buffers by name, detached, not copied.

    Unlike a state dict, it contains non-persistent buffers, and tied tensors under all their names.
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named}
