"""An answer of several turns: what its environment replied, and which tokens the policy sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from numbers import Real
from typing import Any, Final

import attrs
import numpy as np

from hooktrainer.errors import RolloutError, message_of, shortened
from hooktrainer.ports import Answer, Environment, Mask, Observation, Prompt, Score
from hooktrainer.rollout.scoring import checked_score

_LONGEST: Final = 200
"""Characters of a prompt or a turn in a message."""


class ReplyError(RolloutError):
    """An environment that does not follow its protocol, which no option allows."""


@attrs.define(eq=False)
class Conversation:
    """The turns of one answer. A restart begins a new conversation in a new environment."""

    prompt: Prompt
    environment: Environment
    restarted: Callable[[Conversation], Conversation | None]
    """Ends this conversation, and returns a new one about the prompt."""
    replying: Future[Any] | None = None
    """The last reply of the environment, which may not be there yet."""
    started: bool = False
    """Whether the environment was reset."""
    turn: int = 0
    """Number of complete turns."""
    start: int = 0
    """Number of tokens before this turn."""
    observed: list[slice] = attrs.field(factory=list)
    """Places of the tokens of observations."""
    texts: list[str] = attrs.field(factory=list)
    """Turns and observations, in order."""
    result: Score | None = None
    """The score, once the conversation has ended."""
    error: BaseException | None = None
    """Why the answer has no score."""

    @property
    def has_ended(self) -> bool:
        """Whether it has a score or an error."""
        return self.result is not None or self.error is not None

    @property
    def score(self) -> Score:
        """The score of a conversation that has ended. Raises the error of its environment if there was one."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    @property
    def text(self) -> str:
        """All turns and observations, a line each."""
        return "\n".join(self.texts)

    @property
    def turns(self) -> tuple[str, ...]:
        """All turns and observations; empty if there is no observation."""
        return tuple(self.texts) if len(self.texts) > 1 else ()

    def reply(self, answer: Answer, resolve: Callable[[Any], Any]) -> Observation | Score:
        """Return what the environment replies to a turn; `resolve` awaits values.

        Raises `ReplyError` if the environment returns anything else.
        """
        if not self.started:
            prompt = resolve(self.environment.reset(self.prompt.example))
            if prompt != self.prompt.example.prompt:
                where, expected = f"{type(self.environment).__name__}.reset", _short(self.prompt.example.prompt)
                raise ReplyError(
                    f"{where} returned {_short(prompt)}, expected the prompt of the example, {expected}. Prompts are "
                    "tokenized before: make them in `train` and `heldout` of the task"
                )
            self.started = True
        found = resolve(self.environment.step(answer))
        where = f"{type(self.environment).__name__}.step"
        if isinstance(found, str) or _is_messages(found):
            return found  # type: ignore[no-any-return]
        if isinstance(found, (Score, Real, np.bool_)):
            try:
                return checked_score(found, where, self.prompt.example, answer)
            except RolloutError as error:
                raise ReplyError(str(error)) from None
        raise ReplyError(
            f"{where} returned {_short(found)}; expected an observation, which is a text or a list of messages, or the "
            "score, which ends the conversation"
        )

    @property
    def name(self) -> str:
        """The method that replies, for messages."""
        return f"{type(self.environment).__name__}.{'step' if self.started else 'reset'}"

    def describe(self, text: str, error: BaseException) -> str:
        """Return the message of an error of the environment in this turn, whose text is given."""
        place = f"turn {self.turn + 1} of the answer to {_short(self.prompt.text)}, {_short(text)}"
        return f"{place}: {type(error).__name__}: {message_of(error)}"

    def loss_mask(self, num_tokens: int) -> Mask | None:
        """Return the loss mask of the answer; None if the policy sampled all tokens."""
        if not self.observed:
            return None
        mask = np.ones(num_tokens, np.bool_)
        for place in self.observed:
            mask[place] = False
        return mask


def observation_text(observation: Observation) -> str:
    """Return an observation as one text, for logs."""
    if isinstance(observation, str):
        return observation
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in observation)


def _is_messages(found: object) -> bool:
    is_list = isinstance(found, Sequence) and not isinstance(found, (str, bytes))
    return is_list and all(isinstance(message, Mapping) for message in found)  # type: ignore[attr-defined]


def _short(value: object) -> str:
    return shortened(repr(value), _LONGEST)
