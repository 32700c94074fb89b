"""The tokenized prompts of a run, over all epochs of a task."""

from __future__ import annotations

import itertools
import logging
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import attrs
import numpy as np

from hooktrainer._util.imports import described
from hooktrainer.errors import CheckpointError, ConfigError, Fault, RunError, add_note
from hooktrainer.metrics import Metric, Sum
from hooktrainer.ports import Example, HasFingerprint, Prompt, Task, Tokenizer

_LOG: Final = logging.getLogger("hooktrainer")
Overlong: TypeAlias = Literal["filter", "error", "left", "right"]
_MAX_FILTERED: Final = 10_000
"""Prompts in a row that are too long, after which the data counts as unsuitable."""


@attrs.frozen
class PromptLimit:
    """The largest number of tokens of a prompt, and what happens to longer ones."""

    max_length: int
    overlong: Overlong = "filter"

    def apply(self, prompt: Prompt, name: str) -> Prompt | None:
        """Return the prompt within the limit, or None to leave it out. Raises `ConfigError` with `error`."""
        length, limit = len(prompt.tokens), self.max_length
        if length <= limit:
            return prompt
        match self.overlong:
            case "left":
                return attrs.evolve(prompt, tokens=prompt.tokens[length - limit :])
            case "right":
                return attrs.evolve(prompt, tokens=prompt.tokens[:limit])
            case "error":
                found = f"{name}, {reprlib.repr(prompt.text)}, has {length} tokens"
                remedy = "Raise the limit, or set rollout.overlong_prompts to filter, left or right"
                text = f"{found}, more than rollout.max_prompt_length = {limit}. {remedy}"
                raise ConfigError([Fault("task", text)])
        return None


@attrs.frozen
class _Position:
    epoch: int
    place: int
    """Number of examples of this epoch up to this one, those left out included."""
    prompt: Prompt | ConfigError
    """The error of a prompt that cannot be used, which is raised when the prompt is taken."""


class TaskPrompts:
    """Implementation of `hooktrainer.ports.PromptSource` for a task.

    Epochs follow each other without a gap, each with its own seed.
    """

    def __init__(
        self, task: Task, tokenizer: Tokenizer, *, seed: int, total_epochs: int = 1, limit: PromptLimit | None = None
    ) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._seed = seed
        self._total_epochs = total_epochs
        self._limit = limit
        self._filtered = 0  # since the last `take_metrics`
        self._taken: _Position | None = None
        self._stream: Iterator[_Position] = iter(())
        self._ahead: list[_Position] = []
        self._seek(0, 0)

    def require(self, count: int) -> None:
        """Raise `ConfigError` unless there are `count` training prompts that can be used; none is taken."""
        self._ahead += itertools.islice(self._stream, count - len(self._ahead))
        for position in self._ahead:
            if isinstance(position.prompt, ConfigError):
                raise position.prompt
        if len(self._ahead) < count:
            found = f"{len(self._ahead)} training prompts are fewer than trainer.ppo_mini_batch_size = {count}"
            left_out = f" ({self._filtered} more are longer than rollout.max_prompt_length)" if self._filtered else ""
            text = f"{found}{left_out}. Add prompts, epochs (trainer.total_epochs), or lower it"
            raise ConfigError([Fault("task", text)])

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        return not self._ahead

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` training prompts; fewer at the end of the data.

        Raises `RunError` for a prompt that cannot be used.
        """
        found = self._ahead + list(itertools.islice(self._stream, max(0, count + 1 - len(self._ahead))))
        self._ahead = found[count:]
        taken = []
        for position in found[:count]:
            if isinstance(position.prompt, ConfigError):
                raise RunError(str(position.prompt)) from position.prompt.__cause__
            self._taken = position
            taken.append(position.prompt)
        return tuple(taken)

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return the first `count` held-out prompts, always the same ones; fewer if the task has fewer.

        Prompts that are too long are treated as those of training. Raises `ConfigError` for a prompt that cannot be
        used.
        """
        examples = itertools.islice(_read(lambda: self._task.heldout(count), "heldout"), count)
        named = [(example, f"held-out prompt {number}") for number, example in enumerate(examples, start=1)]
        found = [self._prompt(example, name) for example, name in named]
        prompts = tuple(prompt for prompt in found if prompt is not None)
        if len(prompts) < len(found):
            _LOG.warning(
                "%d of %d held-out prompts are longer than rollout.max_prompt_length, and are left out",
                len(found) - len(prompts),
                len(found),
            )
        return prompts

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return the number of training prompts that were left out since the last call."""
        filtered, self._filtered = self._filtered, 0
        return {"data/filtered_too_long": Sum(filtered)}

    def state_dict(self) -> Mapping[str, object]:
        """Return the position in the data, the last prompt taken, and the checksums of the data."""
        data = self._fingerprint()
        if (taken := self._taken) is None:
            return {"epoch": 0, "place": 0, "last": None, "data": data}
        return {"epoch": taken.epoch, "place": taken.place, "last": _text(taken), "data": data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises `CheckpointError` if the data changed, or has another prompt there."""
        before, current = dict(state["data"]), self._fingerprint()
        if changed := sorted(key for key in before.keys() | current.keys() if before.get(key) != current.get(key)):
            text = f"the data of the task changed since the checkpoint was made: {', '.join(changed)}"
            raise CheckpointError(f"{text}. Resume with the same data, or start a new run.")
        epoch, place, last = state["epoch"], state["place"], state["last"]
        self._taken = None
        if place:
            self._seek(epoch, place - 1)
            found = self._ahead[0] if self._ahead else None
            if found is None or (found.epoch, found.place, _text(found)) != (epoch, place, last):
                now = None if found is None or found.epoch != epoch else _text(found)
                raise CheckpointError(
                    f"prompt {place} of epoch {epoch + 1} was {reprlib.repr(last)} when the checkpoint was made, and "
                    f"is {reprlib.repr(now)} now: the task, its options or the seed changed. Resume with the same "
                    "ones, or start a new run."
                )
            self._taken = found
        self._seek(epoch, place)
        self._filtered = 0

    def _fingerprint(self) -> dict[str, str]:
        return dict(self._task.fingerprint()) if isinstance(self._task, HasFingerprint) else {}

    def _seek(self, epoch: int, place: int) -> None:
        self._stream = self._positions(epoch, place)
        self._ahead = list(itertools.islice(self._stream, 1))

    def _positions(self, first: int, skipped: int) -> Iterator[_Position]:
        """Yield the prompts after the first `skipped` examples of an epoch."""
        filtered = 0
        for epoch in range(first, self._total_epochs):
            place = skipped
            examples = _read(partial(self._task.train, _epoch_seed(self._seed, epoch)), "train", skipped)
            for place, example in enumerate(examples, skipped + 1):
                prompt = self._prompt_or_error(example, f"training prompt {place} of epoch {epoch + 1}")
                filtered = filtered + 1 if prompt is None else 0
                if filtered == _MAX_FILTERED:
                    prompt = ConfigError([Fault("task", self._unsuitable(example))])
                if prompt is not None:
                    yield _Position(epoch, place, prompt)
                if isinstance(prompt, ConfigError):
                    return
                self._filtered += prompt is None
            if not place:
                return  # later epochs would be empty, too
            skipped = 0

    def _prompt_or_error(self, example: object, name: str) -> Prompt | ConfigError | None:
        try:
            return self._prompt(example, name)
        except ConfigError as error:
            return error

    def _prompt(self, example: object, name: str) -> Prompt | None:
        """Return the tokenized prompt of an example; None to leave it out. Raises `ConfigError` if it is unusable.

        `example` is an exception if the task raised one in its place.
        """
        if isinstance(example, ConfigError):
            raise example
        if isinstance(example, Exception):
            raise ConfigError([Fault("task", f"{name} could not be read: {described(example)}")]) from example
        if not isinstance(example, Example):
            found = f"{name} is {reprlib.repr(example)} ({type(example).__name__})"
            raise ConfigError(
                [Fault("task", f"{found}, expected an Example of hooktrainer.ports: Example(prompt, row)")]
            )
        if not _is_prompt(example.prompt):
            found = f"{name} is {reprlib.repr(example.prompt)} ({type(example.prompt).__name__})"
            raise ConfigError([Fault("task", f"{found}, expected a text or a list of messages with role and content")])
        try:
            prompt = Prompt(example, self._tokenizer.encode(example.prompt))
        except ConfigError as error:
            raise ConfigError([Fault("task", f"{name}: {error}")]) from None
        if not len(prompt.tokens):
            raise ConfigError([Fault("task", f"{name}, {reprlib.repr(example.text)}, has no tokens")])
        return prompt if self._limit is None else self._limit.apply(prompt, name)

    def _unsuitable(self, example: Example) -> str:
        limit = self._limit.max_length if self._limit else 0
        found = f"{_MAX_FILTERED} prompts in a row have more than rollout.max_prompt_length = {limit} tokens"
        last = f"the last one is {reprlib.repr(example.text)}"
        return f"{found}; {last}. Raise the limit, or set rollout.overlong_prompts to left or right"


def _is_prompt(prompt: object) -> bool:
    if isinstance(prompt, str):
        return True
    return isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt) and bool(prompt)


def _text(position: _Position) -> str | None:
    return position.prompt.text if isinstance(position.prompt, Prompt) else None


def _read(method: Callable[[], object], name: str, skipped: int = 0) -> Iterator[Any]:
    """Yield the examples that a method of a task returns; an exception that it raises is the last item."""
    number = skipped + 1
    try:
        for example in _without_first(_iterated(method(), name), skipped):
            yield example
            number += 1
    except GeneratorExit:
        raise
    except Exception as error:  # noqa: BLE001 (any error of a task)
        yield error
    except BaseException as error:
        add_note(error, f"raised by {name} of the task for prompt {number}")
        raise


def _iterated(found: object, method: str) -> Iterable[Any]:
    if isinstance(found, Iterable) and not isinstance(found, str):
        return found
    text = f"{method} returned {reprlib.repr(found)} ({type(found).__name__}), expected examples"
    raise ConfigError([Fault("task", text)])


def _without_first(examples: Iterable[Any], count: int) -> Iterator[Any]:
    """Return the examples after the first ones, which are not read if the examples are a sequence."""
    if isinstance(examples, Sequence):
        return (examples[place] for place in range(count, len(examples)))
    return itertools.islice(examples, count, None)


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
