"""Generation of scored trajectories from prompts, with the published weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import cast

import numpy as np
import torch

from hooktrainer._util.forks import Original
from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.ports import SCORE_TOLERANCE, Floats, Group, Prompt, Task, Tokens, Trajectory
from hooktrainer.rollout.decode_batch import DecodeBatch, Request
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.sampler import uniform_draws
from hooktrainer.tasks.tokenizer import CharTokenizer
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer.weight_sync.torn_reads import Fingerprint, end_tensors


class Generator:
    """Answers prompts with the weights in use. Thread-safe."""

    def __init__(
        self, *, weights: ModulePair, tokenizer: CharTokenizer, task: Task, seed: int, options: SamplingOptions
    ) -> None:
        self.weights = weights
        self.options = options
        self._tokenizer = tokenizer
        self._task = task
        self._seed = seed

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
                eos_id=self._tokenizer.eos_id,
                device=next(iter(state.values())).device,
                slots=slots,
                length=self._task.longest_prompt + self.options.max_response_length,
                fingerprint=lambda: Fingerprint.of(version, ends),
            )

    @torch.no_grad()
    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,).

        Every prefix of the text is prefilled as a prompt is. Call it on the thread that flips weights.
        """
        module = self.weights.in_use
        device = next(iter(full_state(module).values())).device
        model, count = cast("Policy", module), len(tokens) - 1
        prefixes = torch.from_numpy(np.tile(tokens[:-1], (count, 1))).to(device)
        logits = model.prefill(prefixes, range(1, count + 1), model.new_cache(count, count))
        targets = torch.from_numpy(tokens[1:]).to(device)
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
        return self.trajectories(requests)

    def trajectories(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Score complete requests; raise `RolloutError` on non-finite logits or an invalid score."""
        return [self._trajectory(request) for request in requests]

    def _trajectory(self, request: Request) -> Trajectory:
        logprobs = np.array(request.logprobs, dtype=np.float32)
        if not np.isfinite(logprobs).all():
            raise RolloutError("the model's logits are not finite, so no token can be sampled")
        tokens = np.array(request.tokens, dtype=np.int64)
        text = self._tokenizer.decode(tokens)
        return Trajectory(
            tokens=tokens,
            logprobs=logprobs,
            score=self._score(request.prompt, text),
            text=text,
            truncated=not request.ended,
            versions=np.array(request.versions, dtype=np.int64),
        )

    def _score(self, prompt: Prompt, text: str) -> float:
        with Original().without_copies():
            score: object = self._task.score(prompt.truth, text)
        if not isinstance(score, (Real, np.bool_)) or not -SCORE_TOLERANCE <= float(score) <= 1.0 + SCORE_TOLERANCE:
            raise RolloutError(
                f"{type(self._task).__name__}.score returned {score!r} for the answer {text!r} to {prompt.text!r}; "
                "expected a number from 0 to 1"
            )
        nearest = float(round(float(score)))
        return nearest if abs(float(score) - nearest) <= SCORE_TOLERANCE else float(score)
