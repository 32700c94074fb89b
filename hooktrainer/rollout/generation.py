"""From prompts to scored trajectories, on the weights that are published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import cast

import numpy as np
import torch

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.ports import Floats, Group, Prompt, Task, Tokens, Trajectory
from hooktrainer.rollout.decode_batch import Draft, Lane
from hooktrainer.rollout.options import Sampling
from hooktrainer.rollout.sampler import uniforms
from hooktrainer.tasks.tokenizer import CharTokenizer
from hooktrainer.weight_sync.double_buffer import Modules
from hooktrainer.weight_sync.torn_reads import Echo, ends_of


class Generator:
    """Answers prompts with the weights in use; safe to use from many threads."""

    def __init__(self, *, weights: Modules, tokenizer: CharTokenizer, task: Task, seed: int, options: Sampling) -> None:
        self.weights = weights
        self.options = options
        self._tokenizer = tokenizer
        self._task = task
        self._seed = seed

    def drafts(self, group: Group) -> list[Draft]:
        """The `n` answers of a group, to be sampled with its own random numbers."""
        draws = uniforms(self._seed, group.number, self.options.n, self.options.max_response_length)
        return [Draft(group.prompt, group.number, row) for row in draws]

    @contextmanager
    def lane(self, slots: int) -> Iterator[Lane]:
        """A lane on the weights in use, which stay as they are until the end of the block."""
        with self.weights.reading() as (module, version):
            if version < 0:
                raise RolloutError("no weights were published to this engine yet")
            state = full_state(module)
            ends = ends_of(state)
            yield Lane(
                cast("Policy", module),
                version,
                options=self.options,
                eos_id=self._tokenizer.eos_id,
                device=next(iter(state.values())).device,
                slots=slots,
                length=self._task.longest_prompt + self.options.max_response_length,
                echo=lambda: Echo.of(version, ends),
            )

    @torch.no_grad()
    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), by the weights in use.

        Every beginning of the text is read as a prompt is. For the loop's thread, on which weights change.
        """
        module = self.weights.in_use
        device = next(iter(full_state(module).values())).device
        model, count = cast("Policy", module), len(tokens) - 1
        beginnings = torch.from_numpy(np.tile(tokens[:-1], (count, 1))).to(device)
        logits = model.prefill(beginnings, range(1, count + 1), model.new_cache(count, count))
        targets = torch.from_numpy(tokens[1:]).to(device)
        return of_tokens(log_policy(logits, self.options.temperature), targets).float().cpu().numpy()

    def greedy(self, prompts: Sequence[Prompt]) -> list[Trajectory]:
        """The most likely answer to each prompt, token by token."""
        drafts = [Draft(prompt) for prompt in prompts]
        slots = min(self.options.slots, len(drafts))
        if drafts:
            with self.lane(slots) as lane:
                for start in range(0, len(drafts), slots):
                    lane.admit(drafts[start : start + slots])
                    while lane.rows:
                        lane.step()
        return self.trajectories(drafts)

    def trajectories(self, drafts: Sequence[Draft]) -> list[Trajectory]:
        """Complete drafts, scored. Raises `RolloutError` if logits were not finite, or a score is no number."""
        return [self._trajectory(draft) for draft in drafts]

    def _trajectory(self, draft: Draft) -> Trajectory:
        logprobs = np.array(draft.logprobs, dtype=np.float32)
        if not np.isfinite(logprobs).all():
            raise RolloutError("the model gives logits that are not finite, so that nothing can be sampled from it")
        tokens = np.array(draft.tokens, dtype=np.int64)
        text = self._tokenizer.decode(tokens)
        return Trajectory(
            tokens=tokens,
            logprobs=logprobs,
            score=self._score(draft.prompt, text),
            text=text,
            truncated=not draft.ended,
            versions=np.array(draft.versions, dtype=np.int64),
        )

    def _score(self, prompt: Prompt, text: str) -> float:
        score: object = self._task.score(prompt.truth, text)
        if not isinstance(score, (Real, np.bool_)) or not 0.0 <= float(score) <= 1.0:
            raise RolloutError(
                f"{type(self._task).__name__}.score gave {score!r} for the answer {text!r} to "
                f"{prompt.text!r}; a score is a number from 0 to 1"
            )
        return float(score)
