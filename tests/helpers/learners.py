"""Small learners, and groups for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.options import CriticOptions, OptimOptions
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.metrics import Metric
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Example, Group, Prompt, Trajectory

VOCAB = 7
CPU = torch.device("cpu")
DONE = {"lr": 0.01, "weight_decay": 0.0, "grad_clip": 1e9}
LONGEST = 8


class MinimalLearner:
    """A learner with the required methods only."""

    def start_step(self, step: int) -> None: ...

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        return {}

    def weights(self) -> Mapping[str, Tensor]:
        return {"w": torch.zeros(1)}

    def state_dict(self) -> Mapping[str, object]:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


def build(dtype: torch.dtype = torch.float32, **options: object) -> nn.Module:
    model = DecoderOptions(layers=1, width=16, heads=2, **options).build(vocab_size=VOCAB, max_length=16, seed=0)
    return model.to(dtype)


def trajectory(tokens: Sequence[int], score: float, *, truncated: bool = False, version: int = 0) -> Trajectory:
    return Trajectory(
        tokens=np.array(tokens, dtype=np.int64),
        logprobs=np.full(len(tokens), -1.9, dtype=np.float32),
        score=score,
        truncated=truncated,
        versions=np.full(len(tokens), version, dtype=np.int64),
    )


def group(prompt: Sequence[int], *answers: Trajectory, number: int = 0) -> Group:
    tokens = np.array(prompt, dtype=np.int64)
    return Group(number=number, stamp=1, prompt=Prompt(Example("?"), tokens), trajectories=answers)


def on_policy(groups: Sequence[Group], model: nn.Module, temperature: float = 1.0) -> list[Group]:
    """Return the groups with the log-probabilities of the model."""
    batch = PaddedBatch.of(groups, pad_id=0, device=CPU)
    rows = iter(logprobs_of(batch, model, temperature).detach().float().numpy())
    return [
        attrs.evolve(
            each,
            trajectories=tuple(
                attrs.evolve(answer, logprobs=next(rows)[: len(answer.tokens)]) for answer in each.trajectories
            ),
        )
        for each in groups
    ]


def drifted(groups: Sequence[Group], by: float = 0.3, seed: int = 0) -> list[Group]:
    """Return the groups as if another policy had sampled them: every log-probability differs."""
    generator = np.random.default_rng(seed)
    return [
        attrs.evolve(
            each,
            trajectories=tuple(
                attrs.evolve(
                    answer,
                    logprobs=answer.logprobs + generator.normal(0, by, len(answer.logprobs)).astype(np.float32),
                )
                for answer in each.trajectories
            ),
        )
        for each in groups
    ]


def logprobs_of(batch: PaddedBatch, model: nn.Module, temperature: float) -> Tensor:
    logits = model(batch.tokens, batch.left_pad)[:, batch.tokens.shape[1] - batch.responses.shape[1] - 1 : -1]
    return of_tokens(log_policy(logits, temperature), batch.responses)


GROUPS = (
    group([2, 3, 4], trajectory([5, 1], 1.0), trajectory([4, 4, 1], 0.0), trajectory([6], 0.25)),
    group([2], trajectory([3, 3, 3, 3], 0.5, truncated=True), trajectory([1], 0.75), number=1),
)


def learner(model: nn.Module, **options: object) -> PolicyGradientLearner:
    """Return a learner with options of all sections; options of the critic start with `critic_`."""
    algorithm = {key: options.pop(key) for key in list(options) if key in attrs.fields_dict(AlgorithmOptions)}
    critic = {key.removeprefix("critic_"): options.pop(key) for key in list(options) if key.startswith("critic_")}
    optim = {key: options.pop(key) for key in list(options) if key in attrs.fields_dict(OptimOptions)}
    return PolicyGradientLearner(
        model,
        algorithm=AlgorithmOptions(**algorithm),
        optim=OptimOptions(**{**DONE, **optim}),
        critic=CriticOptions(**critic),
        **{"max_response_length": LONGEST, **options},
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in full_state(model).items()}


def values(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return all metrics as numbers."""
    return {key: metric.value for key, metric in metrics.items() if isinstance(metric, Metric)}  # type: ignore[misc]
