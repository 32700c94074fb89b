"""The values that reward functions can take by name: the answers to a prompt, and the columns of its row."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from hooktrainer.errors import shortened
from hooktrainer.ports import Answer, Example
from hooktrainer.tasks.rewards.binding import LOGGERS, OF_AN_ANSWER, TRUTHS
from hooktrainer.tasks.rewards.returns import BadReturnError, described, is_real

_LONGEST = 200
"""Characters of a prompt or an answer in a message."""


@attrs.frozen
class TrainerState:
    """The `trainer_state` of a reward function."""

    global_step: int
    """Steps that were complete when the answers were sampled: the version of the weights."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state has only `global_step`, not {name!r}")


@attrs.frozen
class Scene:
    """The answers to one prompt, with everything that reward functions may read. Values are copied for each call."""

    example: Example
    truth: Any
    answers: Sequence[Answer]
    logged: list[dict[str, float]] = attrs.field(init=False)
    """Numbers that functions logged, for each answer."""

    @logged.default
    def _logged(self) -> list[dict[str, float]]:
        return [{} for _ in self.answers]

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns that are passed to a function which takes all; the prompt has parameters of its own."""
        return {key: value for key, value in self.example.row.items() if key not in {"prompt", "completion"}}

    def of_answer(self, answer: Answer, name: str) -> Any:
        """Return a value for a function that takes one answer."""
        row = self.example.row
        if name in OF_AN_ANSWER:
            return answer.text
        if name in TRUTHS and self.truth is not None:
            return copy.deepcopy(self.truth)
        if name == "prompt":
            return copy.deepcopy(self.example.prompt)
        if name == "data_source":
            return row.get(name, self.example.source)
        return copy.deepcopy(row.get(name) or {} if name == "extra_info" else row.get(name))

    def of_group(self, reward: str, name: str) -> Any:
        """Return a value for a function that takes all answers; columns are lists with one item for each answer."""
        if name == "prompts":
            return [copy.deepcopy(self.example.prompt) for _ in self.answers]
        if name == "completions":
            texts = [answer.text for answer in self.answers]
            is_text = isinstance(self.example.prompt, str)
            return texts if is_text else [[{"role": "assistant", "content": text}] for text in texts]
        if name == "completion_ids":
            return [answer.tokens.tolist() for answer in self.answers]
        if name == "trainer_state":
            return TrainerState(self.answers[0].version)
        if name in LOGGERS:
            return partial(self._log, reward, is_metric=name == "log_metric")
        value = self.truth if name in TRUTHS and name not in self.example.row else self.example.row.get(name)
        return [copy.deepcopy(value) for _ in self.answers]

    def where(self, answer: Answer | None) -> str:
        """Return the answer, or all of them, and the prompt, for messages."""
        prompt = repr(shortened(self.example.text, _LONGEST))
        if answer is not None:
            return f"the answer {shortened(answer.text, _LONGEST)!r} to {prompt}"
        first = f" (the first is {shortened(self.answers[0].text, _LONGEST)!r})" if self.answers else ""
        return f"the {len(self.answers)} answers to {prompt}{first}"

    def _log(self, reward: str, key: str, value: Any, *, is_metric: bool) -> None:
        """Store a number for each answer: one of `log_metric` for all, or a list of `log_extra`.

        Texts of `log_extra` are accepted, and not reported.
        """
        values = [value] * len(self.answers) if is_metric else value
        if len(values) != len(self.answers):
            raise BadReturnError(f"logged {len(values)} values of {key!r} for {len(self.answers)} answers")
        for logged, one in zip(self.logged, values, strict=True):
            number = one.item() if callable(getattr(one, "item", None)) else one
            if is_real(number):
                logged[f"{reward}/{key}"] = float(number)
            elif is_metric:
                raise BadReturnError(f"logged {described(one)} as the metric {key!r}; expected a number")
