"""Policies that accept all weights, and continue to use the head that they used first."""

from __future__ import annotations

from multiprocessing import parent_process

import torch
from torch import Tensor, nn

from helpers.rollouts import LENGTH, TASK, TOKENIZER
from hooktrainer.models.decoder import Decoder


def policy(kind: type[Decoder] = Decoder, *, tied: bool = False, seed: int = 0) -> Decoder:
    """Return a small policy for the task."""
    with torch.random.fork_rng(devices=()):
        model = kind(
            vocab_size=TOKENIZER.vocab_size,
            max_length=TASK.longest_prompt + LENGTH,
            layers=1,
            width=16,
            heads=2,
            mlp_ratio=2,
            positions="learned",
            tied=tied,
        )
    model.initialize(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


class StaleHead(Decoder):
    """A decoder that uses a copy of the first head that any module of this class used."""

    kept: Tensor | None = None

    def project(self, states: Tensor) -> Tensor:
        if StaleHead.kept is None:
            StaleHead.kept = self.head.weight.clone()
        return nn.functional.linear(states, StaleHead.kept)


class StaleInWorkers(StaleHead):
    """A decoder that is correct in the process of the trainer, and stale in worker processes."""

    def project(self, states: Tensor) -> Tensor:
        return Decoder.project(self, states) if parent_process() is None else super().project(states)
