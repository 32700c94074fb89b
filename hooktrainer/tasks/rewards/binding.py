"""Parameters of reward functions, bound by name: which values a function takes, and of how many answers at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from hooktrainer.errors import ConfigError, did_you_mean

LOGGERS: Final = ("log_metric", "log_extra")
OF_A_GROUP: Final = ("completions", "prompts", "completion_ids", "trainer_state", *LOGGERS)
"""Parameters that TRL passes. A function with one of them is called once for all answers to a prompt."""
OF_AN_ANSWER: Final = ("answer", "solution_str")
"""Parameters that hold the text of one answer. A function with one of them is called for each answer."""
TRUTHS: Final = ("truth", "ground_truth")
OF_A_ROW: Final = ("prompt", "data_source", "extra_info")
"""Further parameters of a function for one answer, under the names of verl."""
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MANY: Final = 40


@attrs.frozen
class Names:
    """The names that a task can bind."""

    columns: Sequence[str]
    has_truth: bool


@attrs.frozen
class Binding:
    """How a reward function is called."""

    function: Callable[..., Any]
    per_group: bool
    """Whether it takes all answers to a prompt at once."""
    takes: Sequence[str]
    """Parameters that are filled from the answers and the row of the data."""
    takes_columns: bool
    """Whether it takes all columns as further keywords."""
    args: Mapping[str, Any]
    positional: Sequence[str] = ()
    """Parameters that cannot be passed by name."""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, args: Mapping[str, Any], names: Names) -> Binding:
        """Bind a function. Raises `ConfigError` with its signature for a parameter without a value."""
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # a function written in C
            raise ConfigError(f"{name} has no readable signature. Wrap it in a Python function") from None
        shown = f"{name}({', '.join(map(str, parameters.values()))})"
        named = {key: value for key, value in parameters.items() if value.kind not in _VARIABLE}
        variable = any(value.kind is inspect.Parameter.VAR_KEYWORD for value in parameters.values())
        _check_args(args, named, shown, variable=variable)
        per_group = _is_per_group(named, shown, variable=variable)
        available = _available(names, named, per_group=per_group)
        required = [key for key, value in named.items() if value.default is value.empty and key not in args]
        for key in required:
            if key not in available:
                raise ConfigError(_unavailable(key, shown, available, names))
        takes = [key for key in named if key in available and key not in args]
        positional = [key for key, value in named.items() if value.kind is value.POSITIONAL_ONLY]
        return cls(function, per_group, takes, variable and "solution_str" not in named, args, positional)

    def call(self, lookup: Callable[[str], Any], columns: Iterable[str]) -> Any:
        """Call the function with values from `lookup`; `columns` are all names of columns."""
        further = (*OF_A_GROUP, *columns) if self.per_group else columns
        names = dict.fromkeys([*self.takes, *(further if self.takes_columns else ())])
        keywords = {**{name: lookup(name) for name in names}, **self.args}
        first = [keywords.pop(name) for name in self.positional if name in keywords]
        return self.function(*first, **keywords)


def _is_per_group(named: Mapping[str, object], shown: str, *, variable: bool) -> bool:
    if any(key in named for key in OF_A_GROUP):
        return True
    if any(key in named for key in OF_AN_ANSWER):
        return False
    if variable:
        return True
    close = next(filter(None, (did_you_mean(key, (*OF_AN_ANSWER, *OF_A_GROUP)) for key in named)), "")
    text = f"{shown} takes no answers. A function for one answer has the parameter answer or solution_str"
    raise ConfigError(f"{text}, and a function for all answers to a prompt has completions.{close}")


def _available(names: Names, named: Mapping[str, object], *, per_group: bool) -> list[str]:
    truths = TRUTHS if names.has_truth else ()
    if per_group:
        return [*OF_A_GROUP, *dict.fromkeys([*truths, *names.columns])]
    own = [*OF_AN_ANSWER, *truths, *OF_A_ROW]
    columns = () if "solution_str" in named else names.columns  # verl passes no columns
    return [*own, *(name for name in columns if name not in own)]


def _check_args(args: Mapping[str, Any], named: Mapping[str, object], shown: str, *, variable: bool) -> None:
    for key in args:
        if key not in named and not variable:
            raise ConfigError(f"args has '{key}', which {shown} does not take.{did_you_mean(key, named)}")


def _unavailable(key: str, shown: str, available: Sequence[str], names: Names) -> str:
    listed = ", ".join(available[:_MANY]) + (", ..." if len(available) > _MANY else "")
    text = f"{shown} takes '{key}', which is not available. There are {listed}"
    if key in TRUTHS and not names.has_truth:
        return f"{text}. Set task.truth to the column of the truth, one of {', '.join(names.columns[:_MANY])}."
    return f"{text}. Rename the parameter, give it a default, or set it in args.{did_you_mean(key, available)}"
