"""Replies of environments to the turns of answers, in threads, while other answers are decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import numpy as np

from hooktrainer.errors import ConfigError, Fault, RolloutError, line_of
from hooktrainer.ports import Answer, Example, HasEnvironment, Observation, ObservationTokenizer, Prompt, Score, Tokens
from hooktrainer.rollout.closing import OpenEnvironments, log_warning
from hooktrainer.rollout.conversation import Conversation, ReplyError, observation_text
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.pool_call import Resolve
from hooktrainer.rollout.score_options import ScoreOptions
from hooktrainer.rollout.score_pool import PoolError, ScorePool

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request

_Reply: TypeAlias = tuple[Observation | Score, Tokens]
"""What an environment replied, and the tokens of an observation."""
_NO_TOKENS: Final = np.empty(0, np.int64)


class Turns:
    """The environments of a task. Thread-safe."""

    def __init__(
        self,
        task: HasEnvironment,
        config: GeneratorConfig,
        options: SamplingOptions,
        warn: Callable[[str], None] = log_warning,
    ) -> None:
        """Raise `ConfigError` if the tokenizer cannot encode observations. `warn` is called on any thread."""
        if not isinstance(config.tokenizer, ObservationTokenizer):
            text = (
                f"its environments write observations, and the {type(config.tokenizer).__name__} of the model has no "
                "`encode_observation` (hooktrainer.ports.ObservationTokenizer). Add it, or use another model"
            )
            raise ConfigError([Fault("task", text)])
        self._task = task
        self._tokenizer = config.tokenizer
        self._decode: Callable[[Tokens], str] = config.tokenizer.decode
        self._options = options
        self._encoding = threading.Lock()  # tokenizers need not be thread-safe
        limits = ScoreOptions(timeout_s=options.turn_timeout_s, workers=config.reward.workers)
        self.pool: Final = ScorePool(limits, limit="rollout.turn_timeout_s")
        self._environments = OpenEnvironments(self.pool, warn)

    def open(self) -> None:
        """Accept turns again after `close`."""
        self.pool.open()
        self._environments.open()

    def close(self) -> None:
        """Cancel all replies, and close all environments."""
        self.pool.close(self._environments.end_all)

    def finish(self, seconds: float) -> None:
        """Wait until all environments are closed after `close`, at most this many seconds."""
        self._environments.finish(seconds)

    def end(self, conversation: Conversation) -> None:
        """Close the environment of a conversation, unless it was closed."""
        self._environments.end(conversation)

    def conversation(self, prompt: Prompt) -> Conversation | None:
        """Return a new conversation about a prompt; None if the task scores the answers to it."""
        try:
            environment = self._task.environment(prompt.example)
        except Exception as error:  # noqa: BLE001 - it fails the group of the prompt and no other
            environment = _Unmade(f"{type(self._task).__name__}.environment raised {line_of(error)}", error)
        if environment is None:
            return None
        conversation = Conversation(prompt, environment, self._restarted)
        self._environments.add(conversation)
        return conversation

    def _restarted(self, conversation: Conversation) -> Conversation | None:
        self.end(conversation)
        return self.conversation(conversation.prompt)

    def submit(self, request: Request) -> Future[_Reply]:
        """Ask the environment for its reply to the turn that a request completed."""
        conversation, answer = _conversation_of(request), self._turn(request)

        def reply(resolve: Resolve) -> _Reply:
            found = conversation.reply(answer, resolve)
            if isinstance(found, Score):
                return found, _NO_TOKENS
            return found, self._encoded(found)

        conversation.replying = self.pool.submit(reply, lambda: conversation.name)
        return conversation.replying

    def apply(self, request: Request, future: Future[_Reply]) -> None:
        """Append an observation to a request, which is incomplete again; or complete it with a score or an error."""
        conversation = _conversation_of(request)
        with suppress(CancelledError):
            future.exception()  # waits here, since an interrupt of this thread is no error of the answer
        self._apply(request, conversation, future)
        if conversation.has_ended:
            self.end(conversation)

    def _apply(self, request: Request, conversation: Conversation, future: Future[_Reply]) -> None:
        answer = self._turn(request)
        try:
            found, tokens = self._reply(conversation, answer, future)
        except BaseException as error:  # noqa: BLE001 - raised when the group is handed in
            conversation.error = error
            return
        conversation.turn += 1
        conversation.texts.append(answer.text)
        if isinstance(found, Score):
            conversation.result = found
            return
        conversation.texts.append(observation_text(found))
        if answer.last or len(request.tokens) + len(tokens) >= self._options.max_response_length:
            conversation.result = Score(0.0, exact=False)
            request.ended = False
            return
        start = len(request.tokens)
        request.tokens += tokens.tolist()
        request.logprobs += [0.0] * len(tokens)
        request.versions += [request.versions[-1]] * len(tokens)
        conversation.start = len(request.tokens)
        conversation.observed.append(slice(start, conversation.start))
        request.complete = request.ended = False

    def _turn(self, request: Request) -> Answer:
        conversation = _conversation_of(request)
        tokens = np.array(request.tokens[conversation.start :], dtype=np.int64)
        return Answer(
            self._decode(tokens),
            tokens,
            truncated=not request.ended,
            version=request.versions[conversation.start],
            turn=conversation.turn,
            last=len(request.tokens) >= self._options.max_response_length
            or conversation.turn + 1 >= self._options.max_turns,
        )

    def _reply(self, conversation: Conversation, answer: Answer, future: Future[_Reply]) -> _Reply:
        """Return the reply, or the error of the environment as an observation if that is configured."""
        try:
            return future.result()
        except CancelledError:
            raise
        except Exception as error:
            named = RolloutError(conversation.describe(answer.text, error))
            if isinstance(error, PoolError):
                raise
            if self._options.tool_errors == "fail" or isinstance(error, (ReplyError, _EncodingError)):
                raise named from error
            text = line_of(error)
            try:
                return text, self._encoded(text)
            except _EncodingError as problem:
                named.add_note(f"the policy cannot read the error as rollout.tool_errors = observe requires: {problem}")
                raise named from error

    def _encoded(self, observation: Observation) -> Tokens:
        try:
            with self._encoding:
                return self._tokenizer.encode_observation(observation)
        except ConfigError as error:
            raise _EncodingError(f"the observation cannot be encoded: {error}") from error


@attrs.frozen
class _Unmade:
    """The environment of an example for which the task raised an error."""

    text: str
    error: Exception

    def reset(self, example: Example) -> Observation:  # noqa: ARG002 (as in `Environment`)
        raise ReplyError(self.text) from self.error

    def step(self, answer: Answer) -> Observation:  # noqa: ARG002 (as in `Environment`)
        raise ReplyError(self.text) from self.error


class _EncodingError(RolloutError):
    """An observation that the tokenizer cannot encode."""


class PendingTurns:
    """The requests of one thread whose environments have not replied yet."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._futures: dict[Request, Future[_Reply]] = {}
        self._replied: SimpleQueue[tuple[Request, Future[_Reply]]] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, request: object) -> bool:
        return request in self._futures

    def add(self, requests: Sequence[Request]) -> None:
        """Ask the environments of these requests, whose turns are complete."""
        for request in requests:
            future = self._turns.submit(request)
            self._futures[request] = future
            future.add_done_callback(partial(self._put, request))

    def take(self, *, timeout: float = 0.0) -> list[Request]:
        """Return the requests whose environments replied; wait at most this many seconds for the first one."""
        found: list[Request] = []
        while self._futures:
            try:
                request, future = self._replied.get(block=bool(timeout) and not found, timeout=timeout or None)
            except Empty:
                break
            if self._futures.get(request) is future:
                self._apply(request)
                found.append(request)
        return found

    def take_all(self) -> list[Request]:
        """Wait for all replies, and return their requests in the order of `add`."""
        requests = list(self._futures)
        for request in requests:
            self._apply(request)
        return requests

    def discard(self, request: Request) -> bool:
        """Forget a request, and return whether its environment had not replied."""
        return self._futures.pop(request, None) is not None

    def threads(self) -> list[tuple[int, threading.Thread]]:
        """Return the threads of environments with the numbers of their groups; may be called by any thread."""
        asked, pool = list(self._futures.items()), self._turns.pool
        found = [(request.number, pool.thread_of(future)) for request, future in asked]
        return [(number, thread) for number, thread in found if thread is not None]

    def clear(self) -> None:
        """Forget all requests."""
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()

    def _put(self, request: Request, future: Future[Any]) -> None:
        self._replied.put((request, future))

    def _apply(self, request: Request) -> None:
        self._turns.apply(request, self._futures.pop(request))


def _conversation_of(request: Request) -> Conversation:
    assert request.conversation is not None
    return request.conversation
