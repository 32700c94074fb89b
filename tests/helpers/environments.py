"""Small environments and their task, over the characters of the addition task."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from helpers.rollouts import TOKENIZER
from hooktrainer.ports import Answer, Environment, Example
from hooktrainer.tasks.addition import Addition


@attrs.define
class Countdown:
    """Replies to a number of turns, then gives a score; records what it is called with."""

    replies: Sequence[Any] = ("+1", "=")
    score: Any = 0.5
    answers: list[Answer] = attrs.field(factory=list)
    threads: set[int] = attrs.field(factory=set)

    def reset(self, example: Example) -> Any:
        self.threads.add(threading.get_ident())
        return example.prompt

    def step(self, answer: Answer) -> Any:
        self.answers.append(answer)
        self.threads.add(threading.get_ident())
        reply = self.replies[len(self.answers) - 1] if len(self.answers) <= len(self.replies) else self.score
        if isinstance(reply, BaseException):
            raise reply
        return reply


@attrs.frozen(kw_only=True)
class Talk(Addition):
    """The addition task, whose answers have several turns."""

    replies: Sequence[Any] = ("+1", "=")
    result: Any = 0.5
    made: list[Countdown] = attrs.field(factory=list)
    of: type[Countdown] = Countdown

    def environment(self, example: Example) -> Environment | None:
        self.made.append(self.of(self.replies, self.result))
        return self.made[-1]


class Scripted(nn.Module):
    """A policy that writes `3` and ends its turn; after a `0` it never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10))

    def new_cache(self, rows: int, length: int) -> Scripted:
        return self

    def append(self, other: Scripted, rows: Sequence[int]) -> None: ...

    def keep(self, rows: Sequence[int]) -> None: ...

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: Scripted) -> Tensor:
        return self.decode(torch.stack([row[length - 1] for row, length in zip(tokens, lengths, strict=True)]), cache)

    def decode(self, tokens: Tensor, cache: Scripted) -> Tensor:
        three, zero = TOKENIZER.encode("30").tolist()
        following = {three: 1, zero: zero}
        logits = torch.full((len(tokens), TOKENIZER.vocab_size), -100.0)
        for row, token in enumerate(tokens.tolist()):
            logits[row, following.get(token, three)] = 0.0
        return logits
