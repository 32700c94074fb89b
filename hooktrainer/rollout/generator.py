"""From prompts to scored trajectories, on the weights that are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from torch import nn

from hooktrainer.errors import RolloutError
from hooktrainer.groups import Group, Prompt, Tokens, Trajectory
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.ports import Task
from hooktrainer.rollout.options import Sampling
from hooktrainer.rollout.sampler import Responses, sample, uniforms
from hooktrainer.rollout.weights import DoubleBuffer
from hooktrainer.tasks.tokenizer import CharTokenizer


class Generator:
    """Answers prompts with the weights of one double buffer; safe to use from many threads."""

    def __init__(
        self,
        *,
        policy: Callable[[], nn.Module],
        tokenizer: CharTokenizer,
        task: Task,
        seed: int,
        options: Sampling,
    ) -> None:
        self.weights = DoubleBuffer(policy)
        self._tokenizer = tokenizer
        self._task = task
        self._seed = seed
        self._options = options

    def groups(self, groups: Sequence[Group]) -> list[list[Trajectory]]:
        """`n` sampled answers to each group's prompt, all on one version."""
        options = self._options
        draws = [uniforms(self._seed, group.number, options.n, options.max_response_length) for group in groups]
        answers = self._answer([group.prompt for group in groups], np.concatenate(draws), options.n)
        return [answers[start : start + options.n] for start in range(0, len(answers), options.n)]

    def greedy(self, prompts: Sequence[Prompt]) -> list[Trajectory]:
        """The most likely answer to each prompt, token by token."""
        return self._answer(prompts, None, 1) if prompts else []

    def _answer(self, prompts: Sequence[Prompt], draws: np.ndarray | None, n: int) -> list[Trajectory]:
        with self.weights.reading() as (module, version):
            if version < 0:
                raise RolloutError("no weights were published to this engine yet")
            responses = sample(
                cast("Policy", module),
                [prompt.tokens for prompt in prompts],
                draws,
                n=n,
                temperature=self._options.temperature,
                max_response_length=self._options.max_response_length,
                eos_id=self._tokenizer.eos_id,
                device=next(iter(full_state(module).values())).device,
            )
        return [self._trajectory(prompts[row // n], responses, row, version) for row in range(len(prompts) * n)]

    def _trajectory(self, prompt: Prompt, responses: Responses, row: int, version: int) -> Trajectory:
        length = int(responses.lengths[row])
        tokens: Tokens = responses.tokens[row, :length].copy()
        text = self._tokenizer.decode(tokens)
        return Trajectory(
            tokens=tokens,
            logprobs=responses.logprobs[row, :length].copy(),
            score=self._task.score(prompt.truth, text),
            text=text,
            truncated=not responses.ended[row],
            versions=np.full(length, version),
        )
