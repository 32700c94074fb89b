"""Distributions of durations, and their notation on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import attrs
import numpy as np

from hooktrainer.config.yaml_text import YamlError, read_yaml
from hooktrainer.errors import ConfigError
from hooktrainer.run.rows import FILE, read_rows

Kind: TypeAlias = Literal["generate", "train", "sync"]
"""Operations that take time: generating a group, training on a mini-batch, a weight sync."""
FORMS: Final = "SECONDS, constant:SECONDS, lognormal:MEAN:SIGMA or recorded:RUN_DIR"
LONGEST_S: Final = 1e9
"""Seconds, about thirty years; a longer duration is an error in the input."""
WIDEST: Final = 5.0
"""Largest sigma; above it, one sample of a thousand would take nearly all of the time."""
_GROUP: Final = "timing_s/group/"
_KEYS: Final[Mapping[Kind, str]] = {
    "generate": f"{_GROUP}<seconds>",
    "train": "timing_s/update_actor",
    "sync": "timing_s/weight_sync",
}


class Distribution(Protocol):
    """A distribution of seconds."""

    def draw(self, rng: np.random.Generator) -> float:
        """Sample a number of seconds, at least 0."""
        ...


def _up_to(most: float) -> Callable[[object, attrs.Attribute[float], float], None]:
    def check(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
        if not 0 <= value <= most:
            raise ValueError(f"'{attribute.name}' must be from 0 to {most:g}: {value:g}")

    return check


def _is_positive(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 < value <= LONGEST_S:
        raise ValueError(f"'{attribute.name}' must be above 0 and at most {LONGEST_S:g}: {value:g}")


@attrs.frozen
class Constant:
    """The same duration every time."""

    seconds: float = attrs.field(converter=float, validator=_up_to(LONGEST_S))

    def draw(self, rng: np.random.Generator) -> float:  # noqa: ARG002
        """Return the constant."""
        return self.seconds


@attrs.frozen
class LogNormal:
    """A log-normal distribution: skewed to the right, like lengths of answers."""

    mean: float = attrs.field(converter=float, validator=_is_positive)
    """Mean of the seconds."""
    sigma: float = attrs.field(converter=float, validator=_up_to(WIDEST))
    """Standard deviation of the logarithm of the seconds."""

    def draw(self, rng: np.random.Generator) -> float:
        """Sample the exponential of a normal number."""
        return float(rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma))


@attrs.frozen
class Recorded:
    """The distribution of durations measured in a run."""

    seconds: tuple[float, ...]
    shares: tuple[float, ...] = attrs.field(repr=False)
    """Cumulative share of each value; the last one is 1."""

    @classmethod
    def of(cls, counts: Mapping[float, float]) -> Self:
        """Create the distribution from the number of times that each value was measured."""
        values = sorted(counts)
        shares = np.cumsum([counts[value] for value in values])
        return cls(tuple(values), tuple((shares / shares[-1]).tolist()))

    def draw(self, rng: np.random.Generator) -> float:
        """Sample a value with its measured frequency."""
        return self.seconds[int(np.searchsorted(self.shares, rng.random(), side="right"))]


def parse_distribution(text: str, kind: Kind) -> Distribution:
    """Parse a distribution. `kind` selects the metric of a recorded run. Raises `ConfigError`."""
    name, *rest = text.split(":") if ":" in text else ["constant", text]
    try:
        if name == "recorded":
            return _recorded(Path(text.partition(":")[2]), kind)
        makers: dict[str, Callable[..., Distribution]] = {"constant": Constant, "lognormal": LogNormal}
        return makers[name](*rest)
    except (KeyError, TypeError, ValueError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise ConfigError(f"--{kind} {text}{why}; expected {FORMS}") from error


def _recorded(directory: Path, kind: Kind) -> Recorded:
    try:
        rows = list(read_rows(directory))
    except OSError as error:
        text = f"--{kind} recorded:{directory}: {directory / FILE} cannot be read ({error.strerror})"
        raise ConfigError(text) from error
    counts: dict[float, float] = {}
    for seconds, count in _measured(rows, directory, kind):
        counts[seconds] = counts.get(seconds, 0) + count
    if not counts:
        raise ConfigError(
            f"--{kind} recorded:{directory}: no row has {_KEYS[kind]}; the run needs metric_aggregation, and "
            "log_after_collect with the sink jsonl"
        )
    return Recorded.of(counts)


def _measured(rows: list[dict[str, Any]], directory: Path, kind: Kind) -> Iterator[tuple[float, float]]:
    """Yield pairs of seconds and their count."""
    if kind == "generate":
        for row in rows:
            histogram = {key: count for key, count in row.items() if key.startswith(_GROUP) and count}
            yield from ((float(key.removeprefix(_GROUP)), count) for key, count in histogram.items())
        return
    updates = _updates_per_step(directory) if kind == "train" else 1
    for row in (row for row in rows if row.get(_KEYS[kind]) is not None):
        times = row.get("training/partial_iterations", updates) if kind == "train" else 1
        yield row[_KEYS[kind]] / times, times


def _updates_per_step(directory: Path) -> int:
    try:
        text = (directory / "config.yaml").read_text(encoding="utf-8")
        return int(read_yaml(text)["trainer"]["parameter_sync_step"])
    except (OSError, LookupError, TypeError, ValueError, YamlError) as error:
        raise ConfigError(
            f"--train recorded:{directory}: its config.yaml has no trainer.parameter_sync_step, which is needed to "
            "divide the time of a step by its updates"
        ) from error
