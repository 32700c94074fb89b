"""The tokenized prompts of a run, over all epochs of a task."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hooktrainer._util.imports import described
from hooktrainer.errors import CheckpointError, ConfigError, Fault, RunError, add_note
from hooktrainer.ports import Prompt, Task
from hooktrainer.tasks.tokenizer import CharTokenizer


class TaskPrompts:
    """Implementation of `hooktrainer.ports.PromptSource` for a task.

    Epochs follow each other without a gap, each with its own seed.
    """

    def __init__(self, task: Task, tokenizer: CharTokenizer, *, seed: int, total_epochs: int = 1) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._longest = task.longest_prompt
        self._seed = seed
        self._total_epochs = total_epochs
        self._epoch = 0  # of the last prompt taken
        self._given = 0  # prompts taken from that epoch
        self._last: tuple[str, str] | None = None
        self._stream: Iterator[tuple[int, tuple[str, str]]] = iter(())  # (epoch, prompt)
        self._ahead: list[tuple[int, tuple[str, str]]] = []
        self._seek(0, 0)

    def require(self, count: int) -> None:
        """Raise `ConfigError` unless there are `count` training prompts that can be used; none is taken."""
        self._ahead += itertools.islice(self._stream, count - len(self._ahead))
        for number, (_, pair) in enumerate(self._ahead, start=1):
            self._tokenized(pair, f"training prompt {number}")
        if len(self._ahead) < count:
            text = f"{len(self._ahead)} training prompts are fewer than trainer.ppo_mini_batch_size = {count}"
            raise ConfigError([Fault("task", f"{text}. Add prompts, epochs (trainer.total_epochs), or lower it")])

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        return not self._ahead

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` training prompts; fewer at the end of the data.

        Raise `RunError` for a prompt that cannot be used.
        """
        found = self._ahead + list(itertools.islice(self._stream, count))
        self._ahead = found[count:]
        taken = []
        for epoch, pair in found[:count]:
            self._given = self._given + 1 if epoch == self._epoch else 1
            self._epoch, self._last = epoch, pair
            try:
                taken.append(self._tokenized(pair, f"training prompt {self._given} of epoch {epoch + 1}"))
            except ConfigError as error:
                raise RunError(str(error)) from error.__cause__
        return tuple(taken)

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return the first `count` held-out prompts, always the same ones; fewer if the task has fewer.

        Raise `ConfigError` for a prompt that cannot be used.
        """
        pairs = _read(lambda: self._task.heldout(count), "heldout")
        return tuple(
            self._tokenized(pair, f"held-out prompt {number}")
            for number, pair in enumerate(itertools.islice(pairs, count), start=1)
        )

    def state_dict(self) -> Mapping[str, object]:
        """Return the position in the data, and the last prompt taken."""
        return {"epoch": self._epoch, "given": self._given, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises `CheckpointError` if the data has another prompt there."""
        epoch, given, last = state["epoch"], state["given"], state["last"]
        if given:
            self._seek(epoch, given - 1)
            found = next((pair for place, pair in self._ahead if place == epoch), None)
            if not isinstance(found, (tuple, list)) or tuple(found) != tuple(last):
                raise CheckpointError(
                    f"prompt {given} of epoch {epoch + 1} was {last!r} when the checkpoint was made, and is {found!r} "
                    "now: the task, its options or the seed changed. Resume with the same ones, or start a new run."
                )
        self._seek(epoch, given)
        self._epoch, self._given, self._last = epoch, given, last

    def _seek(self, epoch: int, given: int) -> None:
        self._stream = itertools.islice(self._pairs(epoch), given, None)
        self._ahead = list(itertools.islice(self._stream, 1))

    def _pairs(self, first: int) -> Iterator[tuple[int, tuple[str, str]]]:
        for epoch in range(first, self._total_epochs):
            pair = None
            for pair in _read(partial(self._task.train, _epoch_seed(self._seed, epoch)), "train"):
                yield epoch, pair
            if pair is None:
                return  # later epochs would be empty, too

    def _tokenized(self, pair: Any, name: str) -> Prompt:
        """Return a prompt. Raise `ConfigError` if it is no pair of texts, or has no token or too many.

        `pair` is an exception if the task raised one in its place.
        """
        if isinstance(pair, ConfigError):
            raise pair
        if isinstance(pair, Exception):
            raise ConfigError([Fault("task", f"{name} could not be read: {described(pair)}")]) from pair
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            text = f"{name} is {reprlib.repr(pair)} ({type(pair).__name__}), expected a pair (text, truth)"
            raise ConfigError([Fault("task", text)])
        text, truth = pair
        try:
            tokens = self._tokenizer.encode(text)
        except ConfigError as error:
            raise ConfigError([Fault("task", f"{name}: {error}")]) from None
        if not 1 <= len(tokens) <= self._longest:
            found = f"{name}, {reprlib.repr(text)}, has {len(tokens)} tokens"
            text = f"{found}; longest_prompt promises 1 to {self._longest}. Correct longest_prompt, or leave it out"
            raise ConfigError([Fault("task", text)])
        return Prompt(text, tokens, truth)


def _read(method: Callable[[], object], name: str) -> Iterator[Any]:
    """Yield the pairs that a method of a task returns; an exception that it raises is the last item."""
    number = 1
    try:
        for pair in _iterated(method(), name):
            yield pair
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
    text = f"{method} returned {reprlib.repr(found)} ({type(found).__name__}), expected pairs (text, truth)"
    raise ConfigError([Fault("task", text)])


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
