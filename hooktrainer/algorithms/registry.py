"""Names of algorithms, known without importing torch, and functions called with the inputs that they ask for.

A function that YAML names is written like a pytest fixture: each of its parameters is filled by name, from the first of

1. the inputs of the learner (`rewards`, `logprobs`, `mask`, ...), which no configuration can replace;
2. the keys of the `algorithm` section (`clip_ratio_low`, `gamma`, ...), unless None;
3. the arguments beside its name (`algorithm.adv_args`, `algorithm.policy_loss_args`);
4. its own default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from hooktrainer._util.imports import load_module, require_file
from hooktrainer.errors import ConfigError, Fault, did_you_mean

_HERE: Final = "hooktrainer.algorithms"

ADVANTAGE_ESTIMATORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "grpo": f"{_HERE}.advantages:grpo",
        "dr_grpo": f"{_HERE}.advantages:dr_grpo",
        "rloo": f"{_HERE}.advantages:rloo",
        "opo": f"{_HERE}.advantages:opo",
        "maxrl": f"{_HERE}.advantages:maxrl",
        "reinforce_plus_plus": f"{_HERE}.returns:reinforce_plus_plus",
        "reinforce_plus_plus_baseline": f"{_HERE}.returns:reinforce_plus_plus_baseline",
        "gae": f"{_HERE}.returns:gae",
    }
)
"""Inputs: rewards, groups and lengths (B,), mask and token_rewards (B, T), values (B, T) of a critic, reduce.
Returns advantages (B,) or (B, T); with a critic, the pair of advantages and returns, both (B, T)."""

GROUP_RELATIVE: Final = frozenset({"grpo", "dr_grpo", "rloo", "opo", "maxrl", "reinforce_plus_plus_baseline"})
"""Estimators that compare the answers of one prompt: with one answer every advantage is 0."""

OF_A_CRITIC: Final = frozenset({"gae"})
"""Estimators that ask for values, and give returns."""

POLICY_LOSSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ppo_clip": f"{_HERE}.policy_losses:ppo_clip",
        "gspo": f"{_HERE}.policy_losses:gspo",
        "cispo": f"{_HERE}.policy_losses:cispo",
        "decoupled_ppo": f"{_HERE}.policy_losses:decoupled_ppo",
    }
)
"""Inputs: logprobs, proximal, behaviour, advantages, mask, all (B, T). Returns a `TokenLoss`."""

LOSS_AGG_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token-mean": f"{_HERE}.aggregation:token_mean",
        "seq-mean-token-mean": f"{_HERE}.aggregation:seq_mean_token_mean",
        "seq-mean-token-sum": f"{_HERE}.aggregation:seq_mean_token_sum",
        "seq-mean-token-sum-norm": f"{_HERE}.aggregation:seq_mean_token_sum_norm",
        "prompt-mean": f"{_HERE}.aggregation:prompt_mean",
    }
)
"""Inputs: values (B, T), mask (B, T), totals, groups (B,), max_response_length. Returns a scalar."""

BEHAVIOUR_WEIGHTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"{_HERE}.corrections:{name}"
        for name in (
            "tis_token", "tis_sequence", "icepop", "mis_token", "mis_sequence", "mask_geometric", "mask_product",
        )
    }
)  # fmt: skip
"""Inputs: log_ratio (B, T) of proximal to behaviour policy, mask (B, T). Returns weights (B, T)."""

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
"""Keys of the `algorithm` section that the functions of these names take; those of other names take none."""

FUNCTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "adv_estimator": ADVANTAGE_ESTIMATORS,
        "policy_loss": POLICY_LOSSES,
        "loss_agg_mode": LOSS_AGG_MODES,
        "behaviour_weight": BEHAVIOUR_WEIGHTS,
    }
)
"""Keys of the `algorithm` section that name a function."""


@attrs.frozen
class Bound:
    """A function with its options set, to be called with all the inputs there are."""

    name: str
    """As the configuration writes it."""
    function: Callable[..., Any]
    inputs: frozenset[str]
    """The inputs that it asks for."""
    options: Mapping[str, object]
    """What the configuration sets."""
    check: Callable[[object, Mapping[str, object]], None] | None = None
    """Raises for a result that nobody can go on with, given all the inputs."""

    def __call__(self, available: Mapping[str, object]) -> Any:
        """Call it with those inputs that it asks for."""
        found = self.function(**{name: available[name] for name in self.inputs}, **self.options)
        if self.check is not None:
            self.check(found, available)
        return found


def bind(
    name: str,
    known: Mapping[str, str],
    *,
    inputs: Collection[str],
    section: Mapping[str, object] | None = None,
    args: Mapping[str, object] | None = None,
) -> Bound:
    """The function behind a name, with what it is to get; `inputs` are the names that each call will have available.

    `section` holds the keys of the `algorithm` section, `args` the arguments beside the name. Raises `ConfigError` with
    every parameter that nobody fills, and every argument that is not its to take.
    """
    function, args = resolve(name, known), args or {}
    given = {key: value for key, value in (section or {}).items() if value is not None}
    parameters = _parameters(name, function)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {key: parameter for key, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    options = {key: given[key] for key in named if key in given and key not in inputs}
    faults = [
        _argument_fault(name, key, named, inputs, section or {})
        for key in args
        if key in inputs or key in (section or {}) or not (key in named or open_ended)
    ]
    options |= {key: _like(name, key, value, named.get(key)) for key, value in args.items()}
    faults += [
        _lacking(name, key, inputs, given, section or {})
        for key, parameter in named.items()
        if parameter.default is parameter.empty and key not in inputs and key not in options
    ]
    if faults:
        raise ConfigError([Fault("", fault) for fault in faults])
    return Bound(name, function, frozenset(named).intersection(inputs), options)


def check(name: str, known: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the name is known, or has the form of a function of a module or file.

    Nothing is imported; a file has to be there.
    """
    where, _, function = name.rpartition(":")
    if where.endswith(".py") and function.isidentifier():
        require_file(Path(where))
    elif name not in known and not (function.isidentifier() and all(part.isidentifier() for part in where.split("."))):
        forms = "package.module:function or file.py:function"
        raise ConfigError(f"'{name}' is unknown; it takes {', '.join(known)}, {forms}.{did_you_mean(name, known)}")


def taken_by_none(key: str, value: object, names: Collection[str]) -> str:
    """That an option is set which none of the functions of these names takes."""
    takers = [name for name, taken in OPTIONS.items() if key in taken]
    wanted = [name for name in names if name != "none"]
    return f"{value} has no effect: {key} is an option of {', '.join(takers)}, and of none of {', '.join(wanted)}"


def resolve(name: str, known: Mapping[str, str]) -> Callable[..., Any]:
    """The function behind a name. Raises `ConfigError` if there is none."""
    check(name, known)
    where, _, attribute = known.get(name, name).rpartition(":")
    module = load_module(where)
    found = getattr(module, attribute, None)
    if found is None:
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(f"{where} has no function '{attribute}'.{did_you_mean(attribute, functions)}")
    if not callable(found):
        raise ConfigError(f"'{name}' is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _parameters(name: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigError(
                f"'{name}' takes {key} by position; its parameters are filled by name, so drop '/' and '*'"
            )
    return parameters


def _lacking(name: str, key: str, inputs: Collection[str], given: Collection[str], section: Collection[str]) -> str:
    if key in section:
        return f"'{name}' asks for '{key}' and has no usual value for it: set algorithm.{key}"
    there = ", ".join(sorted(inputs))
    return f"'{name}' asks for '{key}', which nobody gives; there are {there}.{did_you_mean(key, {*inputs, *given})}"


def _argument_fault(
    name: str, key: str, named: Collection[str], inputs: Collection[str], section: Collection[str]
) -> str:
    if key in inputs:
        return f"'{key}' is an input of '{name}' that the learner gives, and no argument"
    if key in section:
        return f"'{key}' is a key of the algorithm section itself: write algorithm.{key}"
    takes = sorted(set(named).difference(inputs, section))
    return f"unknown argument '{key}'; '{name}' takes {', '.join(takes) or 'none'}.{did_you_mean(key, takes)}"


def _like(name: str, key: str, value: object, parameter: inspect.Parameter | None) -> object:
    """An argument as the type of its default; plain YAML reads 1e-3 as text."""
    default = None if parameter is None else parameter.default
    if type(default) is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    elif type(default) not in (bool, int, float, str) or type(value) is type(default):
        return value
    raise ConfigError(f"'{key}' of '{name}' must be of type {type(default).__name__}, found {value!r}")
