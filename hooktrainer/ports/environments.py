"""Port of environments, which reply to each turn of an answer, such as tools, games and users."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeAlias, runtime_checkable

from hooktrainer.ports.groups import Example, Messages, Tokens
from hooktrainer.ports.tasks import Answer, Score

Observation: TypeAlias = str | Messages
"""What the policy reads before its next turn: a text, or the messages of a tool or a user."""


@runtime_checkable
class Environment(Protocol):
    """One conversation about an example: the answer of a plain task is the case of one turn.

    Its methods are called on threads other than the one that decodes, one call at a time. They may be asynchronous.
    """

    def reset(self, example: Example) -> Observation | Awaitable[Observation]:
        """Start the conversation, and return its prompt, which is `example.prompt`. Called before the first `step`."""
        ...

    def step(self, answer: Answer) -> Observation | float | Score | Awaitable[Observation | float | Score]:
        """Reply to a turn of the policy: return an observation, or the score, which ends the conversation.

        `answer` has the text and the tokens of this turn only. After `answer.last`, no turn can follow: an observation
        ends the conversation with the score 0.
        """
        ...


@runtime_checkable
class SupportsClose(Protocol):
    """An environment that holds a resource, such as a browser or a process."""

    def close(self) -> Awaitable[None] | None:
        """Release the resource. It may be asynchronous.

        It is called once, on a thread that does not decode: after the answer has ended, failed, timed out or was
        discarded, or at the end of the run. `reset` may not have been called. It follows all other calls, except after
        a timeout and at the end of a run, where a late `step` may not have returned. An error of it, or a call that
        takes longer than `rollout.turn_timeout_s`, is a warning.
        """
        ...


@runtime_checkable
class HasEnvironment(Protocol):
    """A task whose answers have several turns. It needs no `score`."""

    def environment(self, example: Example) -> Environment | None:
        """Return a new environment for one answer; None if the task scores the answers to this example by `score`.

        Called on the thread that decodes: slow work belongs into `reset`.
        """
        ...


@runtime_checkable
class ObservationTokenizer(Protocol):
    """A tokenizer of a model that can read observations."""

    def encode_observation(self, observation: Observation) -> Tokens:
        """Return the tokens between a turn, which ended with an end token, and the next turn.

        They are appended to the tokens so far, which are never tokenized again. Raises `ConfigError` if the observation
        cannot be encoded.
        """
        ...


def missing_methods(task: type) -> str:
    """Return the methods that a class lacks to be a task, as text; empty if it is one."""
    lacks = [name for name in ("train", "heldout") if not callable(getattr(task, name, None))]
    if not any(callable(getattr(task, name, None)) for name in ("score", "environment")):
        lacks.append("score")
    return ", ".join(lacks)
