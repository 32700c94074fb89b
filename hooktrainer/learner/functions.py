"""The functions named in the `algorithm` section, bound to their options and to inputs of the learner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import torch

from hooktrainer.algorithms import registry, result_checks
from hooktrainer.algorithms.advantages import check_epsilon
from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.shaping import overlong_penalty
from hooktrainer.errors import ConfigError, Fault


@attrs.frozen
class Functions:
    """The bound functions. Faults in their options are found before the first update."""

    advantages: registry.Bound
    policy_loss: registry.Bound
    aggregation: registry.Bound
    weight: registry.Bound | None
    """Weight by the ratio of proximal to behaviour policy, if there is one."""

    @classmethod
    def of(cls, algorithm: AlgorithmOptions, *, has_critic: bool, max_response_length: int | None) -> Functions:
        """Bind the functions of a configuration; the result of each call is checked.

        Raises `ConfigError` with the addresses of all faults: a missing input or option, an option that no function
        takes, and bounds that a registered function refuses.
        """
        answers = {"rewards", "groups", "lengths", "mask", "token_rewards", "reduce"}
        answers |= {"values"} if has_critic else set()
        tokens = ("logprobs", "proximal", "behaviour", "advantages", "mask")
        totals = ("values", "mask", "totals", "groups", *constants(max_response_length))
        takes: dict[str, tuple[Collection[str], Mapping[str, Any]]] = {
            "adv_estimator": (answers, algorithm.adv_args),
            "policy_loss": (tokens, algorithm.policy_loss_args),
            "loss_agg_mode": (totals, {}),
        }
        if algorithm.behaviour_weight != "none":
            takes["behaviour_weight"] = (("log_ratio", "mask"), algorithm.behaviour_weight_args)
        bound, errors = dict[str, registry.Bound](), list[ConfigError]()
        for key, (inputs, args) in takes.items():
            try:
                bound[key] = _bound(algorithm, key, inputs, args)
            except ConfigError as error:
                errors.append(error)
        if errors:
            raise ConfigError([fault for error in errors for fault in error.faults]) from errors[0]
        functions = cls(
            advantages=bound["adv_estimator"],
            policy_loss=bound["policy_loss"],
            aggregation=bound["loss_agg_mode"],
            weight=bound.get("behaviour_weight"),
        )
        faults = [
            *functions._unused_options(algorithm),
            *functions._refused_bounds(max_response_length),
            *_penalty(algorithm, max_response_length),
        ]
        if faults:
            raise ConfigError(faults)
        return functions

    def _unused_options(self, algorithm: AlgorithmOptions) -> Iterator[Fault]:
        bound = [
            each for each in (self.advantages, self.policy_loss, self.aggregation, self.weight) if each is not None
        ]
        for key in sorted(frozenset[str]().union(*registry.OPTIONS.values())):
            value = getattr(algorithm, key)
            if value is not None and not any(key in each.options for each in bound):
                text = registry.taken_by_none(key, value, [each.name for each in bound])
                yield Fault(f"algorithm.{key}", text)

    def _refused_bounds(self, max_response_length: int | None) -> Iterator[Fault]:
        """Yield the faults that registered functions raise for one token; user-defined functions are not called."""
        token, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
        inputs: dict[str, object] = dict.fromkeys(
            ("logprobs", "proximal", "behaviour", "advantages", "values", "log_ratio"), token
        )
        inputs |= {"mask": mask, "totals": Totals(1, 1, (1,)), "groups": torch.zeros(1, dtype=torch.int64)}
        inputs |= constants(max_response_length)
        tried = {"policy_loss": self.policy_loss, "loss_agg_mode": self.aggregation, "behaviour_weight": self.weight}
        for key, bound in tried.items():
            if bound is not None and bound.name in registry.FUNCTIONS[key]:
                try:
                    bound(inputs)
                except ConfigError as error:
                    yield from _at(f"algorithm.{key}", error)
        if self.advantages.name in registry.ADVANTAGE_ESTIMATORS and "epsilon" in self.advantages.options:
            try:
                check_epsilon(self.advantages.options["epsilon"])
            except ConfigError as error:
                yield from _at("algorithm.adv_args.epsilon", error)


def constants(max_response_length: int | None) -> Mapping[str, object]:
    """Return the inputs of an aggregation that are the same in every update."""
    return {} if max_response_length is None else {"max_response_length": max_response_length}


def _bound(algorithm: AlgorithmOptions, key: str, inputs: Collection[str], args: Mapping[str, Any]) -> registry.Bound:
    section = {field.name: getattr(algorithm, field.name) for field in attrs.fields(AlgorithmOptions)}
    try:
        bound = registry.bind(section[key], registry.FUNCTIONS[key], inputs=inputs, section=section, args=args)
    except ConfigError as error:
        faults = [
            attrs.evolve(
                fault, address=f"algorithm.{fault.address or key}", because=fault.because and f"algorithm.{key}"
            )
            for fault in error.faults
        ]
        raise ConfigError(faults) from error
    return attrs.evolve(bound, check=partial(result_checks.check, key, bound.name))


def _penalty(algorithm: AlgorithmOptions, max_response_length: int | None) -> Iterator[Fault]:
    buffer = algorithm.overlong_buffer
    if buffer is None:
        return
    if max_response_length is None:
        text = f"the penalty of {buffer} tokens before the longest response needs its length: give max_response_length"
        yield Fault("algorithm.overlong_buffer", text)
        return
    try:
        overlong_penalty(torch.zeros(1), max_length=max_response_length, buffer=buffer)
    except ConfigError as error:
        yield from _at("algorithm.overlong_buffer", error)


def _at(address: str, error: ConfigError) -> Iterator[Fault]:
    return (Fault(address, fault.message) for fault in error.faults)
