"""Requests that are decoded together, on one version of the weights.

Shapes: R rows (requests in the batch), V vocabulary.
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
from hooktrainer.rollout.conversation import Conversation
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.sampler import sample_tokens
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from hooktrainer.models.policy import Policy


@attrs.define(eq=False)
class Request:
    """One answer to a prompt, while it is generated."""

    prompt: Prompt
    number: int = -1
    """Dispatch number of its group, -1 for an answer outside of groups."""
    draws: NDArray[np.float64] | None = None
    """Uniform random numbers, one for each token; None means greedy decoding."""
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)
    versions: list[int] = attrs.field(factory=list)
    ended: bool = False
    """Whether the end token was sampled."""
    complete: bool = False
    """Whether it has ended or was truncated. A turn that ends is complete until its environment has replied."""
    fingerprints: set[Fingerprint] = attrs.field(factory=set)
    """Fingerprints of its weights, taken when it left each batch."""
    conversation: Conversation | None = None
    """Its turns, for a task with environments."""

    def restart(self) -> None:
        """Discard all tokens."""
        self.tokens.clear()
        self.logprobs.clear()
        self.versions.clear()
        self.fingerprints.clear()
        self.complete = self.ended = False
        self.conversation = self.conversation and self.conversation.restarted(self.conversation)


class DecodeBatch:
    """Requests in dense rows. A request that completes frees its row at once."""

    def __init__(
        self,
        model: Policy,
        version: int,
        *,
        options: SamplingOptions,
        eos_ids: frozenset[int],
        device: torch.device,
        slots: int,
        length: int,
        fingerprint: Callable[[], Fingerprint],
    ) -> None:
        self.version = version
        self._model = model
        self._options = options
        self._eos_ids = eos_ids
        self._device = device
        self._fingerprint = fingerprint
        self._cache = model.new_cache(slots, length)
        self._logits: Tensor | None = None
        """Logits of the next token of every row, (R, V)."""
        self.rows: list[Request] = []

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> None:
        """Prefill the requests, each distinct prompt once; tokens that a request already has are prefilled too."""
        keys = [id(request) if request.tokens else id(request.prompt) for request in requests]
        texts = dict(zip(keys, requests, strict=True))
        text_index = {key: index for index, key in enumerate(texts)}
        rows = [text_index[key] for key in keys]
        tokens, lengths = self._pad([[*one.prompt.tokens.tolist(), *one.tokens] for one in texts.values()])
        cache = self._model.new_cache(len(texts), tokens.shape[1])
        logits = self._model.prefill(tokens, lengths, cache)[torch.tensor(rows, device=self._device)]
        self._cache.append(cache, rows)
        self._logits = logits if self._logits is None else torch.cat((self._logits, logits))
        self.rows += requests

    @torch.no_grad()
    def step(self) -> list[Request]:
        """Sample one token for every row; remove and return the requests that are complete."""
        assert self._logits is not None
        tokens, logprobs = sample_tokens(self._logits, self._options.temperature, self._draws())
        done = []
        sampled = zip(self.rows, tokens.tolist(), logprobs.tolist(), strict=True)
        for row, (request, token, logprob) in enumerate(sampled):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            request.ended = token in self._eos_ids
            request.complete = request.ended or len(request.tokens) == self._options.max_response_length
            if request.complete:
                done.append(row)
        complete = [self.rows[row] for row in done]
        self._add_fingerprint(complete)
        if done:
            tokens = self._remove(done, tokens)
        self._logits = self._model.decode(tokens, self._cache) if self.rows else None
        return complete

    def leave(self) -> list[Request]:
        """Return the requests that are still in flight, to be admitted to another batch."""
        self._add_fingerprint([request for request in self.rows if request.tokens])
        return self.rows

    def _add_fingerprint(self, requests: Sequence[Request]) -> None:
        if requests:
            fingerprint = self._fingerprint()
            for request in requests:
                request.fingerprints.add(fingerprint)

    def _draws(self) -> Tensor | None:
        draws = [request.draws[len(request.tokens)] for request in self.rows if request.draws is not None]
        return torch.tensor(draws, dtype=torch.float64, device=self._device) if draws else None

    def _remove(self, done: Sequence[int], tokens: Tensor) -> Tensor:
        """Move the last rows into the gaps, and return the tokens of the remaining rows."""
        gone = set(done)
        left = len(self.rows) - len(done)
        last = [row for row in range(left, len(self.rows)) if row not in gone]
        gaps = dict(zip((row for row in done if row < left), last, strict=True))
        order = [gaps.get(row, row) for row in range(left)]
        self._cache.keep(order)
        self.rows = [self.rows[row] for row in order]
        return tokens[torch.tensor(order, dtype=torch.long, device=self._device)]

    def _pad(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
        lengths = [len(text) for text in texts]
        padded = np.zeros((len(texts), max(lengths)), dtype=np.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        return torch.from_numpy(padded).to(self._device), lengths
