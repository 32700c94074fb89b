"""Generation of scored trajectories from prompts, with the published weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError, shortened
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.ports import Answer, Floats, Group, HasEnvironment, Prompt, Score, Tokens, Trajectory
from hooktrainer.rollout.closing import log_warning
from hooktrainer.rollout.decode_batch import DecodeBatch, Request
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.pool_call import Resolve
from hooktrainer.rollout.sampler import uniform_draws
from hooktrainer.rollout.score_pool import ScorePool
from hooktrainer.rollout.scoring import awaited, score_answers
from hooktrainer.rollout.turns import PendingTurns, Turns
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer.weight_sync.torn_reads import Fingerprint, end_tensors

_LONGEST: Final = 200
"""Characters of a prompt or an answer in a message."""


class Generator:
    """Answers prompts with the weights in use. Thread-safe."""

    def __init__(
        self,
        config: GeneratorConfig,
        options: SamplingOptions,
        weights: ModulePair,
        warn: Callable[[str], None] = log_warning,
    ) -> None:
        """`warn` is called for faults that fail no answer, on any thread."""
        self.weights = weights
        self.options = options
        self._tokenizer = config.tokenizer
        self._task = config.task
        self._seed = config.seed
        self._max_length = config.max_length
        self.score_pool = ScorePool(config.reward)
        self.turns = Turns(config.task, config, options, warn) if isinstance(config.task, HasEnvironment) else None
        """The environments of the task, if its answers have several turns."""
        self._pools = [self.score_pool] if self.turns is None else [self.score_pool, self.turns.pool]

    def open(self) -> None:
        """Accept scoring and replies of environments again after `close`."""
        self.score_pool.open()
        if self.turns is not None:
            self.turns.open()

    def close(self) -> None:
        """Cancel scoring and replies of environments, and close environments."""
        self.score_pool.close()
        if self.turns is not None:
            self.turns.close()

    def finish(self, seconds: float) -> None:
        """Wait until all environments are closed after `close`, at most this many seconds."""
        if self.turns is not None:
            self.turns.finish(seconds)

    def join(self, seconds: float) -> Sequence[threading.Thread]:
        """Wait until their threads have ended. Return those that are still in a call."""
        deadline = monotonic() + seconds
        return [thread for pool in self._pools for thread in pool.join(max(0.0, deadline - monotonic()))]

    def requests(self, group: Group) -> list[Request]:
        """Return the `n` requests of a group, with the random numbers of the group."""
        draws = uniform_draws(self._seed, group.number, self.options.n, self.options.max_response_length)
        return [self._request(group.prompt, group.number, row) for row in draws]

    def _request(self, prompt: Prompt, number: int = -1, draws: NDArray[np.float64] | None = None) -> Request:
        conversation = None if self.turns is None else self.turns.conversation(prompt)
        return Request(prompt, number, draws, conversation=conversation)

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
        requests = [self._request(prompt) for prompt in prompts]
        self._complete(requests)
        return [answer for (answer,) in self._scored([(request.prompt, [request]) for request in requests])]

    def sampled(self, prompts: Sequence[Prompt]) -> list[list[Trajectory]]:
        """Return `n` sampled answers to each prompt, with the random numbers of its place in the sequence."""
        groups = [Group(number=number, stamp=0, prompt=prompt) for number, prompt in enumerate(prompts)]
        requests = [self.requests(group) for group in groups]
        self._complete([request for of_group in requests for request in of_group])
        return self._scored([(group.prompt, of_group) for group, of_group in zip(groups, requests, strict=True)])

    def _complete(self, requests: Sequence[Request]) -> None:
        """Decode requests until all are complete, and close their environments."""
        slots = min(self.options.slots, len(requests))
        try:
            if requests:
                with self.decode_batch(slots) as batch:
                    for start in range(0, len(requests), slots):
                        self._decode(batch, requests[start : start + slots])
        finally:
            self.end(requests)

    def end(self, requests: Iterable[Request]) -> None:
        """Close the environments of requests that are complete or discarded."""
        if self.turns is not None:
            for request in requests:
                if request.conversation is not None:
                    self.turns.end(request.conversation)

    def _decode(self, batch: DecodeBatch, requests: Sequence[Request]) -> None:
        """Decode requests in an empty batch; it is refilled when the environments have replied to all of its turns."""
        pending = None if self.turns is None else PendingTurns(self.turns)
        while requests:
            batch.admit(requests)
            complete = []
            while batch.rows:
                complete += batch.step()
            requests = []
            if pending is not None:
                pending.add([request for request in complete if request.conversation is not None])
                requests = [request for request in pending.take_all() if not request.complete]

    def _scored(self, answered: Sequence[tuple[Prompt, Sequence[Request]]]) -> list[list[Trajectory]]:
        """Score the complete requests of several prompts; raise the first error."""
        scores = [self.submit(prompt, requests) for prompt, requests in answered]
        try:
            return [each.result() for each in scores]
        finally:
            for each in scores:
                each.cancel()

    def submit(self, prompt: Prompt, requests: Sequence[Request]) -> Future[list[Trajectory]]:
        """Score the complete requests of a prompt on a thread of the pool."""

        def score(resolve: Resolve) -> list[Trajectory]:
            return self.trajectories(prompt, requests, resolve)

        def describe() -> str:
            first = f" (the first is {shortened(self._answer(requests[0]).text, _LONGEST)!r})" if requests else ""
            answers = f"the {len(requests)} answers to {shortened(prompt.text, _LONGEST)!r}{first}"
            return f"{type(self._task).__name__}.score of {answers}"

        return self.score_pool.submit(score, describe)

    def trajectories(self, prompt: Prompt, requests: Sequence[Request], resolve: Resolve = awaited) -> list[Trajectory]:
        """Score the complete requests of a prompt; raise `RolloutError` on non-finite logits or an invalid score."""
        logprobs = [np.array(request.logprobs, dtype=np.float32) for request in requests]
        if not all(np.isfinite(values).all() for values in logprobs):
            raise RolloutError("the model's logits are not finite, so no token can be sampled")
        answers = [self._answer(request) for request in requests]
        scores = self._scores(prompt, requests, answers, resolve)
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
                turns=() if request.conversation is None else request.conversation.turns,
                loss_mask=request.conversation and request.conversation.loss_mask(len(request.tokens)),
            )
            for request, answer, values, score in zip(requests, answers, logprobs, scores, strict=True)
        ]

    def _scores(
        self, prompt: Prompt, requests: Sequence[Request], answers: Sequence[Answer], resolve: Resolve
    ) -> list[Score]:
        """Return the scores of environments, and those of the task for answers without one."""
        conversations = [request.conversation for request in requests]
        without = [answer for answer, own in zip(answers, conversations, strict=True) if own is None]
        of_task = iter(score_answers(self._task, prompt.example, without, resolve) if without else ())
        return [next(of_task) if own is None else own.score for own in conversations]

    def _answer(self, request: Request) -> Answer:
        tokens = np.array(request.tokens, dtype=np.int64)
        version = request.versions[0] if request.versions else 0
        text = self._tokenizer.decode(tokens) if request.conversation is None else request.conversation.text
        return Answer(text, tokens, truncated=not request.ended, version=version)
