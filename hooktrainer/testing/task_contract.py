"""Checks of the task contract, for any task: its examples, the held-out set, and scores of odd answers."""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import numpy as np

from hooktrainer._util.imports import described
from hooktrainer.errors import ConfigError, HookTrainerError
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import (
    Answer,
    CharacterTask,
    HasEnvironment,
    Messages,
    ObservationTokenizer,
    Prompt,
    Score,
    SupportsClose,
    Task,
    Tokenizer,
    Tokens,
)
from hooktrainer.rollout.conversation import Conversation, ReplyError
from hooktrainer.rollout.scoring import awaited, score_answers
from hooktrainer.run.registry import TASKS
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.testing.option_contract import require_option_docs

T = TypeVar("T")

_EXAMPLES: Final = 100
"""Training and held-out examples that are read."""
_SCORED: Final = 10
"""Examples whose answers are scored."""
_COUNTED: Final = 10_000
"""Largest `size` whose examples are counted."""
_SEED: Final = 0


def check_task(
    cls: type[Any], *, tokenizer: Tokenizer | None = None, max_prompt_length: int | None = None, **options: Any
) -> None:
    """Check a task class against the contract of `hooktrainer.ports.Task`. Raises `AssertionError` with a violation.

    - YAML can name the class, and the class and its options have docstrings.
    - `train` and `heldout` return examples, whose rows hold plain JSON values. The same seed gives the same examples.
    - Prompts can be tokenized, and none is too long.
    - `heldout` returns at most as many examples as it is asked for, always the same, and none that `train` yields.
    - `size` is the number of training examples.
    - The score of any answer is a finite number, also that of an empty one and of one that was cut off.
    - An environment begins with the prompt, and replies with a score or with an observation that can be tokenized.

    The first 100 examples of each set are read. A task with `alphabet` and `longest_prompt` is checked with the
    tokenizer of the built-in model. For other tasks, `tokenizer` and `max_prompt_length` are those of your run.
    `options` are those of the task.
    """
    name = cls.__name__
    try:
        TASKS.check(cls, name)
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    assert (cls.__doc__ or "").strip(), f"{name} has no docstring"
    require_option_docs(cls)
    task, again = (_called(f"{name}.__init__", lambda: cls(**options)) for _ in range(2))
    _TaskCheck.of(task, tokenizer, max_prompt_length).check(again)


@attrs.frozen
class _TaskCheck:
    """A task, and what its run would read its prompts with."""

    task: Any
    tokenizer: Tokenizer
    longest: int | None
    """The largest number of tokens of a prompt, if it is known."""
    limit: str
    """Where the limit is set, for messages."""

    @classmethod
    def of(cls, task: Any, tokenizer: Tokenizer | None, max_prompt_length: int | None) -> _TaskCheck:
        limit = "max_prompt_length"
        if tokenizer is None and isinstance(task, CharacterTask):
            tokenizer = _called(f"{type(task).__name__}.alphabet", lambda: CharTokenizer(task.alphabet))
            if max_prompt_length is None:
                max_prompt_length, limit = task.longest_prompt, "longest_prompt"
        if tokenizer is None and max_prompt_length is not None:
            raise TypeError("max_prompt_length counts tokens: pass the `tokenizer` of the model to check_task, too")
        return cls(task, tokenizer or _AnyText(), max_prompt_length, limit)

    @property
    def _name(self) -> str:
        return type(self.task).__name__

    def check(self, again: Any) -> None:
        """Check everything; `again` is another object with the same options."""
        training, heldout = self._training(self.task), self._heldout(self.task)
        assert training, f"{self._name}.train yields no example"
        self._require_prompts("training", training)
        self._require_prompts("held-out", heldout)
        self._require_same(f"train({_SEED})", training, self._training(again))
        self._require_same(f"heldout({_EXAMPLES})", heldout, self._heldout(again))
        self._require_same(f"heldout({_EXAMPLES}), called twice,", heldout, self._heldout(self.task))
        seen = {prompt.text for prompt in heldout}
        shared = next((prompt.text for prompt in training if prompt.text in seen), None)
        assert shared is None, (
            f"{self._name}.heldout returns the prompt {reprlib.repr(shared)}, which train yields, too; validation "
            "would measure training prompts: keep the two sets apart"
        )
        self._require_sizes()
        for prompt in (*training[:_SCORED], *heldout[:_SCORED]):
            self._require_scores(prompt)

    def _prompts(self, task: Task) -> TaskPrompts:
        return TaskPrompts(task, self.tokenizer, seed=_SEED)

    def _training(self, task: Task) -> Sequence[Prompt]:
        return self._valid(lambda: self._prompts(task).take(_EXAMPLES))

    def _heldout(self, task: Task) -> Sequence[Prompt]:
        return self._valid(lambda: self._prompts(task).heldout(_EXAMPLES))

    def _valid(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except HookTrainerError as error:
            raise AssertionError(f"{self._name}: {str(error).removeprefix('task: ')}") from error

    def _require_prompts(self, kind: str, prompts: Sequence[Prompt]) -> None:
        for number, prompt in enumerate(prompts, start=1):
            where = f"{self._name}: {kind} prompt {number}, {reprlib.repr(prompt.text)},"
            length = len(prompt.tokens)
            assert self.longest is None or length <= self.longest, (
                f"{where} has {length} tokens, more than {self.limit} = {self.longest}; a run leaves such prompts out: "
                f"raise {self.limit}, or shorten the prompt"
            )
            for key, value in prompt.example.row.items():
                assert _is_json(value), (
                    f"{where} has {key!r} = {reprlib.repr(value)} ({type(value).__name__}) in its row, expected a "
                    "plain JSON value, since checkpoints store it: convert it to a text, a number or a list"
                )

    def _require_same(self, call: str, first: Sequence[Prompt], second: Sequence[Prompt]) -> None:
        for number, (one, other) in enumerate(itertools.zip_longest(first, second), start=1):
            assert _identity(one) == _identity(other), (
                f"{self._name}.{call} returns other examples the second time: example {number} is "
                f"{_shown(one)} and {_shown(other)}. A resumed run continues in the same examples: draw from a "
                "generator that is made from the seed"
            )

    def _require_sizes(self) -> None:
        few = 3
        found = len([*itertools.islice(self.task.heldout(few), few + 1)])
        assert found <= few, f"{self._name}.heldout({few}) returns more than {few} examples: return at most `size`"
        size = _called(f"{self._name}.size", lambda: self.task.size)
        is_count = isinstance(size, int) and not isinstance(size, bool) and size > 0
        assert size is None or is_count, (
            f"{self._name}.size is {size!r}, expected the number of training examples, or None for an endless task"
        )
        if size is not None and size <= _COUNTED:
            count = len([*itertools.islice(self.task.train(_SEED), size + 1)])
            more = "more" if count > size else str(count)
            assert count == size, f"{self._name}.size is {size}, but train yields {more}: return the number of examples"

    def _require_scores(self, prompt: Prompt) -> None:
        environments = isinstance(self.task, HasEnvironment)
        if not environments or self._environment(prompt) is None:
            answers = [*_answers(prompt)]
            for group in (answers, answers[:1]):
                call = f"{self._name}.score, for the answers {[answer.text for answer in group]},"
                _called(call, partial(score_answers, self.task, prompt.example, group))
            return
        for answer in _answers(prompt):
            self._require_replies(prompt, answer)

    def _environment(self, prompt: Prompt) -> Any:
        return _called(f"{self._name}.environment", lambda: self.task.environment(prompt.example))

    def _require_replies(self, prompt: Prompt, answer: Answer) -> None:
        """Give an environment the same turn twice; the second one is the last."""
        environment = self._environment(prompt)
        conversation = Conversation(prompt, environment, lambda _: None)
        try:
            for turn in range(2):
                reply = conversation.reply(attrs.evolve(answer, turn=turn, last=turn == 1), awaited)
                if isinstance(reply, Score):
                    break
                if isinstance(self.tokenizer, ObservationTokenizer):
                    self.tokenizer.encode_observation(reply)
        except (ConfigError, ReplyError) as error:
            raise AssertionError(f"{self._name}, for the turn {answer.text!r}: {error}") from error
        except Exception as error:
            if not conversation.started:
                raise AssertionError(f"{type(environment).__name__}.reset raises {described(error)}") from error
            # Otherwise a tool refuses the turn, and `rollout.tool_errors` decides what follows.
        finally:
            if isinstance(environment, SupportsClose):
                _called(f"{type(environment).__name__}.close", lambda: awaited(environment.close()))


class _AnyText:
    """A tokenizer that reads every prompt, for tasks whose model is unknown; see `hooktrainer.ports.Tokenizer`."""

    vocab_size = 0x110000
    pad_id = 0
    eos_ids = frozenset({0})

    def encode(self, prompt: str | Messages) -> Tokens:
        text = prompt if isinstance(prompt, str) else json.dumps([*prompt], default=repr)
        return np.array([ord(character) for character in text], np.int64)

    def decode(self, tokens: Tokens) -> str:
        return "".join(map(chr, tokens.tolist()))


def _answers(prompt: Prompt) -> Iterator[Answer]:
    """Yield answers that a policy may sample: none, the prompt itself, values of the row, and one that is cut off."""
    right = [str(value) for value in prompt.example.row.values() if isinstance(value, (str, int, float))]
    for text in dict.fromkeys(["", *right, prompt.text, "0", "?"]):
        yield Answer(text, np.zeros(len(text) + 1, np.int64))
    yield Answer(prompt.text[:1], np.zeros(1, np.int64), truncated=True)


def _called(call: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except HookTrainerError as error:
        raise AssertionError(str(error)) from error
    except Exception as error:
        raise AssertionError(f"{call} raises {described(error)}") from error


def _identity(prompt: Prompt | None) -> str | None:
    return None if prompt is None else json.dumps([prompt.example.prompt, dict(prompt.example.row)], default=repr)


def _shown(prompt: Prompt | None) -> str:
    return "missing" if prompt is None else reprlib.repr(prompt.text)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
