"""Answers that are decoded together, on one version of the weights.

Shapes: R answers in work, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.ports import Prompt
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.sampler import choose
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from hooktrainer.models.policy import Policy


@attrs.define(eq=False)
class Request:
    """An answer in the making."""

    prompt: Prompt
    number: int = -1
    """Dispatch number of its group; -1 outside of any."""
    draws: NDArray[np.float64] | None = None
    """Random numbers, one a token; None takes the most likely tokens."""
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)
    versions: list[int] = attrs.field(factory=list)
    ended: bool = False
    """Whether the end token was reached."""
    complete: bool = False
    """Whether it is ended or cut off."""
    fingerprints: set[Fingerprint] = attrs.field(factory=set)
    """What its weights were, as of the moment when it left them."""

    def restart(self) -> None:
        """Forget what was answered so far."""
        self.tokens.clear()
        self.logprobs.clear()
        self.versions.clear()
        self.fingerprints.clear()
        self.complete = self.ended = False


class DecodeBatch:
    """Drafts in dense rows: one that ends makes room at once, whatever the others have still to say."""

    def __init__(
        self,
        model: Policy,
        version: int,
        *,
        options: SamplingOptions,
        eos_id: int,
        device: torch.device,
        slots: int,
        length: int,
        fingerprint: Callable[[], Fingerprint],
    ) -> None:
        self.version = version
        self._model = model
        self._options = options
        self._eos_id = eos_id
        self._device = device
        self._fingerprint = fingerprint
        self._cache = model.new_cache(slots, length)
        self._logits: Tensor | None = None
        """Of the next token of every row, (R, V)."""
        self.rows: list[Request] = []

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> None:
        """Read each prompt once, with what was answered before, and go on from there."""
        keys = [id(request) if request.tokens else id(request.prompt) for request in requests]
        texts = dict(zip(keys, requests, strict=True))
        places = {key: place for place, key in enumerate(texts)}
        rows = [places[key] for key in keys]
        tokens, lengths = self._padded(
            [[*request.prompt.tokens.tolist(), *request.tokens] for request in texts.values()]
        )
        cache = self._model.new_cache(len(texts), tokens.shape[1])
        logits = self._model.prefill(tokens, lengths, cache)[torch.tensor(rows, device=self._device)]
        self._cache.append(cache, rows)
        self._logits = logits if self._logits is None else torch.cat((self._logits, logits))
        self.rows += requests

    @torch.no_grad()
    def step(self) -> list[Request]:
        """One more token of every row; the drafts that it completed, which leave."""
        assert self._logits is not None
        tokens, logprobs = choose(self._logits, self._options.temperature, self._draws())
        done = []
        for row, (request, token, logprob) in enumerate(
            zip(self.rows, tokens.tolist(), logprobs.tolist(), strict=True)
        ):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            request.ended = token == self._eos_id
            request.complete = request.ended or len(request.tokens) == self._options.max_response_length
            if request.complete:
                done.append(row)
        complete = [self.rows[row] for row in done]
        self._note_fingerprint(complete)
        if done:
            tokens = self._drop(done, tokens)
        self._logits = self._model.decode(tokens, self._cache) if self.rows else None
        return complete

    def leave(self) -> list[Request]:
        """The drafts that are still in work; they go on elsewhere."""
        self._note_fingerprint([request for request in self.rows if request.tokens])
        return self.rows

    def _note_fingerprint(self, requests: Sequence[Request]) -> None:
        if requests:
            fingerprint = self._fingerprint()
            for request in requests:
                request.fingerprints.add(fingerprint)

    def _draws(self) -> Tensor | None:
        draws = [request.draws[len(request.tokens)] for request in self.rows if request.draws is not None]
        return torch.tensor(draws, dtype=torch.float64, device=self._device) if draws else None

    def _drop(self, done: Sequence[int], tokens: Tensor) -> Tensor:
        """Fill the gaps with the last rows; gives the tokens of the rows that stay."""
        gone = set(done)
        left = len(self.rows) - len(done)
        last = [row for row in range(left, len(self.rows)) if row not in gone]
        gaps = dict(zip((row for row in done if row < left), last, strict=True))
        order = [gaps.get(row, row) for row in range(left)]
        self._cache.keep(order)
        self.rows = [self.rows[row] for row in order]
        return tokens[torch.tensor(order, dtype=torch.long, device=self._device)]

    def _padded(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
        lengths = [len(text) for text in texts]
        padded = np.zeros((len(texts), max(lengths)), dtype=np.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        return torch.from_numpy(padded).to(self._device), lengths
