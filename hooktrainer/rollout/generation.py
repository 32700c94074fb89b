"""Generation of scored trajectories from prompts, with the published weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.ports import Answer, Floats, Group, Prompt, Tokens, Trajectory
from hooktrainer.rollout.decode_batch import DecodeBatch, Request
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.sampler import uniform_draws
from hooktrainer.rollout.scoring import score_answers
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer.weight_sync.torn_reads import Fingerprint, end_tensors


class Generator:
    """Answers prompts with the weights in use. Thread-safe."""

    def __init__(self, config: GeneratorConfig, options: SamplingOptions, weights: ModulePair) -> None:
        self.weights = weights
        self.options = options
        self._tokenizer = config.tokenizer
        self._task = config.task
        self._seed = config.seed
        self._max_length = config.max_length

    def requests(self, group: Group) -> list[Request]:
        """Return the `n` requests of a group, with the random numbers of the group."""
        draws = uniform_draws(self._seed, group.number, self.options.n, self.options.max_response_length)
        return [Request(group.prompt, group.number, row) for row in draws]

    @contextmanager
    def decode_batch(self, slots: int) -> Iterator[DecodeBatch]:
        """Yield an empty batch on the weights in use, which do not change until the block ends. Wait while paused."""
        with self.weights.reading() as (module, version):
            if version < 0:
                raise RolloutError("no weights were published to this engine yet")
            state = full_state(module)
            ends = end_tensors(state)
            yield DecodeBatch(
                cast("Policy", module),
                version,
                options=self.options,
                eos_ids=frozenset(self._tokenizer.eos_ids),
                device=next(iter(state.values())).device,
                slots=slots,
                length=self._max_length,
                fingerprint=lambda: Fingerprint.of(version, ends),
            )

    @torch.no_grad()
    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,).

        Every prefix of the text is prefilled as a prompt is, and its last token is decoded as one of an answer is.
        Call it on the thread that flips weights.
        """
        module = self.weights.in_use
        device = next(iter(full_state(module).values())).device
        model, text = cast("Policy", module), torch.from_numpy(tokens).to(device)
        count = max(1, len(tokens) - 2)
        cache = model.new_cache(count, count + 1)
        logits = model.prefill(text[:count].tile(count, 1), range(1, count + 1), cache)
        if len(tokens) > 2:
            logits = torch.cat((logits[:1], model.decode(text[1:-1], cache)))
        targets = text[1:]
        return of_tokens(log_policy(logits, self.options.temperature), targets).float().cpu().numpy()

    def greedy(self, prompts: Sequence[Prompt]) -> list[Trajectory]:
        """Return the greedy answer to each prompt."""
        requests = [Request(prompt) for prompt in prompts]
        slots = min(self.options.slots, len(requests))
        if requests:
            with self.decode_batch(slots) as batch:
                for start in range(0, len(requests), slots):
                    batch.admit(requests[start : start + slots])
                    while batch.rows:
                        batch.step()
        return [answer for request in requests for answer in self.trajectories(request.prompt, [request])]

    def trajectories(self, prompt: Prompt, requests: Sequence[Request]) -> list[Trajectory]:
        """Score the complete requests of a prompt; raise `RolloutError` on non-finite logits or an invalid score."""
        logprobs = [np.array(request.logprobs, dtype=np.float32) for request in requests]
        if not all(np.isfinite(values).all() for values in logprobs):
            raise RolloutError("the model's logits are not finite, so no token can be sampled")
        answers = [self._answer(request) for request in requests]
        return [
            Trajectory(
                tokens=answer.tokens,
                logprobs=values,
                score=score.value,
                exact=bool(score.exact),
                metrics=score.metrics,
                text=answer.text,
                truncated=answer.truncated,
                versions=np.array(request.versions, dtype=np.int64),
            )
            for request, answer, values, score in zip(
                requests, answers, logprobs, score_answers(self._task, prompt.example, answers), strict=True
            )
        ]

    def _answer(self, request: Request) -> Answer:
        tokens = np.array(request.tokens, dtype=np.int64)
        version = request.versions[0] if request.versions else 0
        return Answer(self._tokenizer.decode(tokens), tokens, truncated=not request.ended, version=version)
