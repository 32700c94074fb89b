"""Small environments and their task, over the characters of the addition task."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
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


@attrs.define
class Closable(Countdown):
    """Counts the calls of `close`, and whether one of them came during another call."""

    closed: int = 0
    overlapped: bool = False
    busy: bool = False

    def step(self, answer: Answer) -> Any:
        self.busy = True
        try:
            return super().step(answer)
        finally:
            self.busy = False

    def close(self) -> None:
        self.overlapped |= self.busy
        self.closed += 1


@attrs.define
class Logged(Countdown):
    """Records in a folder which environments were made and which were closed, in any process."""

    folder: Path = attrs.field(default=Path(), kw_only=True)
    behaviour: str = attrs.field(default="", kw_only=True)
    """`hangs`: its second turn never ends; `raises`: `close` does."""

    def __attrs_post_init__(self) -> None:
        self._record("made")

    def step(self, answer: Answer) -> Any:
        if self.behaviour == "hangs" and answer.turn == 1:
            self._record("hangs")
            threading.Event().wait()
        return super().step(answer)

    def close(self) -> None:
        self._record("closed")
        if self.behaviour == "raises":
            raise OSError("the browser is gone")

    def _record(self, what: str) -> None:
        name = f"{os.getpid()}-{id(self)}-{self.folder.name}"
        with (self.folder / what).open("a") as file:
            file.write(f"{name}\n")


@attrs.frozen(kw_only=True)
class LoggedTalk(Talk):
    """The addition task in several turns, whose environments record their life in a folder."""

    folder: str
    behaviour: str = ""

    def environment(self, example: Example) -> Environment | None:
        made = Logged(self.replies, self.result, folder=Path(self.folder), behaviour=self.behaviour)
        KEPT.append(made)  # so that no two have the same id
        return made


KEPT: list[Logged] = []


def recorded(folder: Path, what: str) -> list[str]:
    """Return which environments of `LoggedTalk` were `made`, `closed`, or entered a step that `hangs`, sorted."""
    path = folder / what
    return sorted(path.read_text().splitlines()) if path.exists() else []
