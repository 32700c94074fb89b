"""Values of a row that are computed from its reduced parts, such as throughput and ratios.

The mean of two rates is not the rate of the whole, and the mean of differences is not the difference of extremes.
When the row contains both parts, the derived value replaces a reported one. A ratio with denominator 0 is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hooktrainer.metrics.types import Value

TOKENS: Final = "perf/total_num_tokens"
"""Trained prompt and response tokens, without padding."""
RESPONSE_TOKENS: Final = "perf/total_num_response_tokens"
"""Trained response tokens, without padding."""
DEVICES: Final = "perf/num_devices"
"""Devices of the run; 1 if the row does not contain the key."""

_PER_TOKEN: Final = "timing_per_token_ms/"  # noqa: S105
_TOKENS_OF: Final[Mapping[str, str]] = {
    "gen": RESPONSE_TOKENS,
    **dict.fromkeys(("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"), TOKENS),
}
"""The tokens that each phase of a step processes."""


def derive(values: Mapping[str, Value]) -> dict[str, float | None]:
    """Return the values that follow from others; None removes a key from the row."""
    seconds = _number(values, "timing_s/step")
    devices = _number(values, DEVICES)
    derived: dict[str, float | None] = {}
    if seconds is not None:
        derived["perf/time_per_step"] = seconds
        _quotient(derived, "perf/throughput", _number(values, TOKENS), seconds * (1.0 if devices is None else devices))
        _quotient(derived, "perf/idle_ratio", _number(values, "timing_s/gen"), seconds)
    reported = {key.removeprefix(_PER_TOKEN) for key in values if key.startswith(_PER_TOKEN)}
    for phase in sorted(_TOKENS_OF.keys() | reported):
        spent, tokens = _number(values, f"timing_s/{phase}"), _number(values, _TOKENS_OF.get(phase, TOKENS))
        _quotient(derived, f"{_PER_TOKEN}{phase}", None if spent is None else spent * 1000, tokens)
    derived |= _goodput(values, seconds)
    for prefix in {key.rpartition("/")[0] for key in values if key.endswith("/minmax_diff")} | {"global_seqlen"}:
        high, low = _number(values, f"{prefix}/max"), _number(values, f"{prefix}/min")
        if high is not None and low is not None:
            derived[f"{prefix}/minmax_diff"] = high - low
    return derived


_LEARNER_PHASES: Final[Mapping[str, str]] = {
    "training": "update_actor",
    "waiting_for_groups": "gen",
    "syncing": "weight_sync",
    "validating": "testing",
}
"""Phases of the loop's thread. Without worker threads, generation counts as waiting."""


_ENGINE_PHASES: Final[Mapping[str, str]] = {
    "generating": "generate",
    "waiting_for_groups": "engine_wait_groups",
    "waiting_for_weights": "engine_wait_weights",
}
"""Phases of the rollout workers, summed over all workers."""


def _goodput(values: Mapping[str, Value], seconds: float | None) -> dict[str, float | None]:
    """Return the shares of the learner's and the workers' time, and the share of generated tokens that was dropped."""
    shares: dict[str, float | None] = {}
    spent = {name: _number(values, f"timing_s/{phase}") or 0.0 for name, phase in _LEARNER_PHASES.items()}
    if seconds:
        shares = {f"perf/goodput/learner/{name}": part / seconds for name, part in spent.items()}
        shares["perf/goodput/learner/other"] = max(0.0, 1 - sum(spent.values()) / seconds)
    worked = {name: _number(values, f"timing_s/{phase}") or 0.0 for name, phase in _ENGINE_PHASES.items()}
    if total := sum(worked.values()):
        shares |= {f"perf/goodput/engine/{name}": part / total for name, part in worked.items()}
    dropped = [_number(values, key) or 0.0 for key in values if key.startswith("ledger/tokens/dropped/")]
    _quotient(shares, "perf/goodput/engine/wasted", sum(dropped), _number(values, "ledger/tokens/generated"))
    return shares


def _number(values: Mapping[str, Value], key: str) -> float | None:
    value = values.get(key)
    return None if isinstance(value, Mapping) else value


def _quotient(derived: dict[str, float | None], key: str, numerator: float | None, denominator: float | None) -> None:
    if numerator is not None and denominator is not None:
        derived[key] = numerator / denominator if denominator else None
