"""Names of algorithm functions, known without importing torch, and the binding of their parameters.

A function that YAML names is written like a pytest fixture: each of its parameters is filled by name, from the first of

1. the inputs of the learner (`rewards`, `logprobs`, `mask`, ...), which no configuration can replace;
2. the keys of the `algorithm` section (`clip_ratio_low`, `gamma`, ...), unless None;
3. the arguments that accompany its name (`algorithm.adv_args`, `algorithm.policy_loss_args`);
4. its own default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from hooktrainer._util.registry import Kind
from hooktrainer.errors import ConfigError, Fault, did_you_mean

Function: TypeAlias = Callable[..., Any]

_HERE: Final = "hooktrainer.algorithms"


def _functions(noun: str, **modules: tuple[str, ...]) -> Kind[Function]:
    """Return a kind of function; `modules` lists the registered functions of each module."""
    names = {name: f"{_HERE}.{module}:{name.replace('-', '_')}" for module, names in modules.items() for name in names}
    return Kind(noun, table=names, thing="function")


ADVANTAGE_ESTIMATORS: Final = _functions(
    "advantage estimator",
    advantages=("grpo", "dr_grpo", "rloo", "opo", "maxrl"),
    returns=("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"),
)
"""Inputs: rewards, groups and lengths (B,), mask and token_rewards (B, T), values (B, T) of a critic, reduce.
Return advantages (B,) or (B, T); with a critic, the pair of advantages and returns, both (B, T)."""

GROUP_RELATIVE: Final = frozenset({"grpo", "dr_grpo", "rloo", "opo", "maxrl", "reinforce_plus_plus_baseline"})
"""Estimators that compare the answers to one prompt: with one answer every advantage is 0."""

OF_A_CRITIC: Final = frozenset({"gae"})
"""Estimators that require values, and return returns too."""

OF_CRITIC: Final = ("adv_estimator", "values")
"""The input that only a critic provides, with the key of the functions that take it."""

POLICY_LOSSES: Final = _functions("policy loss", policy_losses=("ppo_clip", "gspo", "cispo", "decoupled_ppo"))
"""Inputs: logprobs, proximal, behaviour, advantages, mask, all (B, T). Return a `TokenLoss`."""

LOSS_AGG_MODES: Final = _functions(
    "loss aggregation",
    aggregation=("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"),
)
"""Inputs: values (B, T), mask (B, T), totals, groups (B,), max_response_length. Return a scalar."""

BEHAVIOUR_WEIGHTS: Final = _functions(
    "behaviour weight",
    corrections=(
        "tis_token", "tis_sequence", "icepop", "mis_token", "mis_sequence", "mask_geometric", "mask_product",
    ),
)  # fmt: skip
"""Inputs: log_ratio (B, T) of proximal to behaviour policy, mask (B, T). Return weights (B, T)."""

OPTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "ppo_clip": frozenset({"clip_ratio_low", "clip_ratio_high", "clip_ratio_c"}),
        "gspo": frozenset({"clip_ratio_low", "clip_ratio_high"}),
        "cispo": frozenset({"cispo_max_ratio"}),
        "decoupled_ppo": frozenset({"clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "behaviour_weight_cap"}),
        "reinforce_plus_plus": frozenset({"gamma"}),
        "gae": frozenset({"gamma", "lam"}),
    }
)
"""Keys of the `algorithm` section that each registered function takes; functions not listed take none."""

FUNCTIONS: Final[Mapping[str, Kind[Function]]] = MappingProxyType(
    {
        "adv_estimator": ADVANTAGE_ESTIMATORS,
        "policy_loss": POLICY_LOSSES,
        "loss_agg_mode": LOSS_AGG_MODES,
        "behaviour_weight": BEHAVIOUR_WEIGHTS,
    }
)
"""Keys of the `algorithm` section that name a function."""

ARGUMENTS_OF: Final[Mapping[str, str]] = MappingProxyType(
    {"adv_estimator": "adv_args", "policy_loss": "policy_loss_args"}
)
"""For keys that name a function, the key of its arguments."""


@attrs.frozen
class Bound:
    """A function with its options set, to be called with all available inputs."""

    name: str
    """As the configuration writes it."""
    function: Function
    inputs: frozenset[str]
    """Names of the inputs that the function takes."""
    options: Mapping[str, object]
    """Values that the configuration sets."""
    check: Callable[[object, Mapping[str, object]], None] | None = None
    """Check that raises `ConfigError` for an invalid result; receives the result and all inputs."""

    def __call__(self, available: Mapping[str, object]) -> Any:
        """Call the function with the inputs that it takes, and check its result."""
        found = self.function(**{name: available[name] for name in self.inputs}, **self.options)
        if self.check is not None:
            self.check(found, available)
        return found


def bind(
    name: str,
    kind: Kind[Function],
    *,
    inputs: Collection[str],
    section: Mapping[str, object] | None = None,
    args: Mapping[str, object] | None = None,
) -> Bound:
    """Return the function behind a name with its options set.

    `inputs` names what every call provides, `section` holds the keys of the `algorithm` section, and `args` the
    arguments that accompany the name. Raises `ConfigError` with every parameter that has no value, and every argument
    that the function does not take, each at its address in the section.
    """
    function, args, section = kind.resolve(name), args or {}, section or {}
    key = next((key for key, known in FUNCTIONS.items() if known is kind), "")
    given = {option: value for option, value in section.items() if value is not None}
    parameters = _parameters(name, function)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {arg: parameter for arg, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    options = {arg: given[arg] for arg in named if arg in given and arg not in inputs}
    takes = sorted(set(named).difference(inputs, section))
    faults, misspelt = list[Fault](), set[str]()
    for arg, value in args.items():
        if arg in inputs or arg in section or not (arg in named or open_ended):
            faults.append(Fault(_place(key, arg), _refused(name, arg, takes, inputs, section)))
            misspelt.update(difflib.get_close_matches(arg, takes, n=1))
            continue
        try:
            options[arg] = converted(name, arg, value, named.get(arg))
        except ConfigError as error:
            faults.append(Fault(_place(key, arg), str(error)))
            misspelt.add(arg)
    for arg, parameter in named.items():
        if parameter.default is parameter.empty and not (arg in inputs or arg in options or arg in misspelt):
            place = arg if arg in section else _place(key, arg)
            faults.append(Fault(place, _missing(name, key, arg, inputs, section), because=key))
    if faults:
        raise ConfigError(faults)
    return Bound(name, function, frozenset(named).intersection(inputs), options)


def _place(key: str, argument: str) -> str:
    """Return the address of an argument in the `algorithm` section; that of its function if it has none."""
    if key in ARGUMENTS_OF and (key, argument) != OF_CRITIC:
        return f"{ARGUMENTS_OF[key]}.{argument}"
    return f"{key}_{argument}" if key == "behaviour_weight" and argument in ("low", "high") else key


def taken_by_none(key: str, value: object, names: Collection[str]) -> str:
    """Return the fault of an option that none of the functions of these names takes."""
    takers = [name for name, taken in OPTIONS.items() if key in taken]
    chosen = [name for name in names if name != "none"]
    return f"{value} has no effect: {key} is an option of {', '.join(takers)}, and of none of {', '.join(chosen)}"


def _parameters(name: str, function: Function) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigError(
                f"'{name}' takes {key} by position; its parameters are filled by name, so remove '/' and '*'"
            )
    return parameters


def _missing(name: str, key: str, arg: str, inputs: Collection[str], section: Collection[str]) -> str:
    if arg in section:
        return f"'{name}' requires '{arg}' and has no default for it: set algorithm.{arg}"
    if (key, arg) == OF_CRITIC:
        return f"'{name}' requires '{arg}', which a critic provides: set critic.use to value_head or model"
    there = ", ".join(sorted(inputs))
    remedy = f" Set algorithm.{_place(key, arg)}, or give it a default." if key in ARGUMENTS_OF else ""
    hint = did_you_mean(arg, inputs) or remedy
    return f"'{name}' requires '{arg}', which is not an input; the inputs are {there}.{hint}"


def _refused(name: str, arg: str, takes: Collection[str], inputs: Collection[str], section: Collection[str]) -> str:
    if arg in inputs:
        return f"'{arg}' is an input of '{name}' that the learner provides, not an argument"
    if arg in section:
        return f"'{arg}' is a key of the algorithm section itself: write algorithm.{arg}"
    return f"unknown argument '{arg}'; '{name}' takes {', '.join(takes) or 'none'}.{did_you_mean(arg, takes)}"


def converted(name: str, key: str, value: object, parameter: inspect.Parameter | None) -> object:
    """Return an argument as the type of its default; plain YAML reads 1e-3 as text."""
    default = None if parameter is None else parameter.default
    if type(default) is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    elif type(default) not in (bool, int, float, str) or type(value) is type(default):
        return value
    raise ConfigError(f"'{key}' of '{name}' must be of type {type(default).__name__}, found {value!r}")
