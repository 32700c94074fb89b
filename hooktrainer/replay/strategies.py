"""Staleness strategies: what is too old to train, what is worth waiting for, how much may be dispatched ahead.

Each is a pure function of numbers. S = k - p + 1 is the staleness of a group in step k, where 1 is fresh; T is the
threshold.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar, Final

import attrs

from hooktrainer.errors import ConfigError, did_you_mean


@attrs.frozen
class Strategy:
    """Base of all strategies; by itself it keeps everything, waits for nothing and paces nothing."""

    threshold: int = 1
    """T."""
    in_order: bool = False
    """Whether sampling waits for the head of the line instead of passing over what is not finished."""

    requeues: ClassVar[bool] = False
    """Whether the prompt of an evicted group is dispatched again."""

    def evicts(self, staleness: int) -> bool:  # noqa: ARG002 (never evicts)
        """Whether a finished group is thrown away when it is sampled; if S is, all above are."""
        return False

    def waits_for(self, staleness: int) -> bool:  # noqa: ARG002 (never waits)
        """Whether sampling blocks while an unfinished group has this staleness; if S does, all above do."""
        return False

    def budget(self, *, version: int, trained: int, outstanding: int, per_step: int) -> int | None:  # noqa: ARG002
        """Groups that may be dispatched now; None leaves dispatch to warm-up, iterations and replacements."""
        return None


@attrs.frozen
class Drop(Strategy):
    """Evict finished groups with S > T, and replace them."""

    def evicts(self, staleness: int) -> bool:
        """S > T."""
        return staleness > self.threshold


@attrs.frozen
class Requeue(Drop):
    """As `Drop`, but with the same prompts again, so that none is lost."""

    requeues: ClassVar[bool] = True


@attrs.frozen
class Wait(Strategy):
    """Drop nothing; block sampling while an unfinished group has S >= T.

    It bounds what is generated late, not what queues.
    """

    def waits_for(self, staleness: int) -> bool:
        """S >= T."""
        return staleness >= self.threshold


@attrs.frozen
class Pace(Strategy):
    """Dispatch only what can be trained in time: T steps' worth beyond what was published (AReaL, arXiv 2505.24298)."""

    def budget(self, *, version: int, trained: int, outstanding: int, per_step: int) -> int | None:
        """(T + version) steps' worth, less what was trained and what is outstanding."""
        return (self.threshold + version) * per_step - (trained + outstanding)


STRATEGIES: Final[Mapping[str, type[Strategy]]] = {"drop": Drop, "pace": Pace, "requeue": Requeue, "wait": Wait}


def strategy(name: str, threshold: int, *, in_order: bool = False) -> Strategy:
    """A strategy by its name, or one of your own by `package.module:name`. Raises `ConfigError` if there is none."""
    if name in STRATEGIES:
        return STRATEGIES[name](threshold, in_order)
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(STRATEGIES)
        hint = did_you_mean(name, STRATEGIES)
        raise ConfigError(f"there is no strategy '{name}'; known are {known}, or package.module:name.{hint}")
    try:
        made = getattr(importlib.import_module(module), attribute)(threshold, in_order)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"the strategy '{name}' cannot be made: {error}") from error
    if not isinstance(made, Strategy):
        raise ConfigError(f"'{name}' makes a {type(made).__name__}; expected a hooktrainer.replay.strategies.Strategy")
    return made
