"""The functions that the `algorithm` section names, with the inputs that the learner has for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.options import Algorithm
from hooktrainer.errors import ConfigError, Fault


def bound(
    algorithm: Algorithm, key: str, inputs: Collection[str], args: Mapping[str, Any] | None = None
) -> registry.Bound:
    """The function that a key of the section names. Raises `ConfigError`, with the address of the key."""
    section = {field.name: getattr(algorithm, field.name) for field in attrs.fields(Algorithm)}
    try:
        return registry.bind(section[key], registry.FUNCTIONS[key], inputs=inputs, section=section, args=args)
    except ConfigError as error:
        raise ConfigError([Fault(f"algorithm.{key}", fault.message) for fault in error.faults]) from error
