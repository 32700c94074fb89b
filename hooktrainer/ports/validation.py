"""The figures of a validation: scores, exact answers and lengths on held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hooktrainer.metrics import Mean
from hooktrainer.ports.groups import Prompt, Trajectory


def validation_metrics(prompts: Sequence[Prompt], answers: Sequence[Trajectory]) -> Mapping[str, Mean]:
    """Return the metrics of one answer to each prompt, by their name in the row.

    The mean score is also reported for each task of a mixture.
    """
    by_source: dict[str, list[float]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        by_source.setdefault(prompt.example.source, []).append(answer.score)
    by_source.pop("", None)  # the task is no mixture
    return {
        "val/score/mean": Mean.of(answer.score for answer in answers),
        **{f"val/score/{source}/mean": Mean.of(scores) for source, scores in by_source.items()},
        "val/exact_match/mean": Mean.of(answer.exact for answer in answers),
        "val/response_length/mean": Mean.of(answer.length for answer in answers),
    }
