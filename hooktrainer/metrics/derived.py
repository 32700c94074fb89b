"""Values of a row that are recomputed from its reduced parts, since no merge of the quotients gives the right one.

The mean of two rates is not the rate of the whole, and a difference of extremes is not the mean of the differences.
Wherever both parts are in the row, they replace what was reported; a quotient by zero is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hooktrainer.metrics.types import Value

TOKENS: Final = "perf/total_num_tokens"
"""Prompt and response tokens that were trained on, padding not counted."""
RESPONSE_TOKENS: Final = "perf/total_num_response_tokens"
"""The response tokens among them."""
DEVICES: Final = "perf/num_devices"
"""Devices that the run holds; one if nobody says."""

_PER_TOKEN: Final = "timing_per_token_ms/"  # noqa: S105
_TOKENS_OF: Final[Mapping[str, str]] = {
    "gen": RESPONSE_TOKENS,
    **dict.fromkeys(("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"), TOKENS),
}
"""What each phase of a step works through."""


def derive(values: Mapping[str, Value]) -> dict[str, float | None]:
    """The values that follow from others; None takes a key out of the row."""
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
"""Where the seconds of the loop's thread go; without worker threads generating is waiting."""


_ENGINE_PHASES: Final[Mapping[str, str]] = {
    "generating": "generate",
    "waiting_for_groups": "engine_wait_groups",
    "waiting_for_weights": "engine_wait_weights",
}
"""Where the seconds of the rollout workers go, all of them together."""


def _goodput(values: Mapping[str, Value], seconds: float | None) -> dict[str, float | None]:
    """Shares of the learner's time and of the workers', and the share of generated tokens that was thrown away."""
    shares: dict[str, float | None] = {}
    spent = {name: _number(values, f"timing_s/{phase}") or 0.0 for name, phase in _LEARNER_PHASES.items()}
    if seconds:
        shares = {f"perf/goodput/learner/{name}": part / seconds for name, part in spent.items()}
        shares["perf/goodput/learner/other"] = max(0.0, 1 - sum(spent.values()) / seconds)
    worked = {name: _number(values, f"timing_s/{phase}") or 0.0 for name, phase in _ENGINE_PHASES.items()}
    if total := sum(worked.values()):
        shares |= {f"perf/goodput/engine/{name}": part / total for name, part in worked.items()}
    thrown = [_number(values, key) or 0.0 for key in values if key.startswith("ledger/tokens/dropped/")]
    _quotient(shares, "perf/goodput/engine/wasted", sum(thrown), _number(values, "ledger/tokens/generated"))
    return shares


def _number(values: Mapping[str, Value], key: str) -> float | None:
    value = values.get(key)
    return None if isinstance(value, Mapping) else value


def _quotient(derived: dict[str, float | None], key: str, numerator: float | None, denominator: float | None) -> None:
    if numerator is not None and denominator is not None:
        derived[key] = numerator / denominator if denominator else None
