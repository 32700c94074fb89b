"""Samples of a run, as a page shows them: a few of each step, also with keys that are not known here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

_KNOWN: Final = ("step", "prompt", "answer")
_MOST: Final = 120
"""Samples on a page."""
_LONGEST: Final = 3000
"""Characters of a prompt or an answer, which are those of its start and its end."""


@attrs.frozen(kw_only=True)
class Sample:
    """A prompt and its answer."""

    step: int | None
    prompt: str
    answer: str
    facts: Sequence[tuple[str, str]]
    """Every other key, such as scores, versions and length, with its value."""


def shown_samples(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Sample]]]:
    """Return samples by step, the last step first. Of many steps, some are chosen: the last, the first, and others."""
    by_step: dict[int | None, list[Sample]] = {}
    for data in found:
        sample = _sample(data)
        by_step.setdefault(sample.step, []).append(sample)
    steps = sorted(by_step, key=lambda step: -1 if step is None else step, reverse=True)
    per_step = max(1, max(map(len, by_step.values()), default=1))
    room = max(2, _MOST // per_step)
    if len(steps) > room:
        steps = [steps[round(place * (len(steps) - 1) / (room - 1))] for place in range(room)]
    return [("step unknown" if step is None else f"step {step}", by_step[step][:_MOST]) for step in steps]


def _sample(data: Mapping[str, Any]) -> Sample:
    step = data.get("step")
    facts = [(str(key), _text(value)) for key, value in data.items() if key not in _KNOWN]
    return Sample(
        step=step if type(step) is int else None,
        prompt=_cut(_text(data.get("prompt", ""))),
        answer=_cut(_text(data.get("answer", ""))),
        facts=[(key, text[:_LONGEST]) for key, text in facts if text],
    )


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
        case list() if all(isinstance(item, (int, float, str)) for item in value):
            return ", ".join(map(_text, value))
        case _:
            return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
