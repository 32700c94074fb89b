"""Metrics of the answers of an update that need no model; NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hooktrainer.metrics import Max, Mean, Metric, Min, Sum
from hooktrainer.ports import Group, Trajectory


def batch_metrics(
    groups: Sequence[Group], over_ranks: Callable[[Mapping[str, Metric]], Mapping[str, Metric]] = dict
) -> Mapping[str, Metric]:
    """Return metrics of scores and lengths, under the names of verl; none if there is no answer.

    `over_ranks` merges the metrics of this process with those of all ranks.

    Lengths of responses count the tokens that the policy sampled. `perf/total_num_tokens` and `global_seqlen` count all
    tokens of prompts and answers, which the learner computes. `response_length/clip_ratio` is the share of answers that
    the sampler cut off at the configured maximum length. A comparison with the longest answer of the batch could never
    be 0.
    """
    merged = over_ranks(_of_this_rank(groups))
    if not merged:
        return {}
    num_tokens = merged["perf/total_num_tokens"].value
    return {**merged, "global_seqlen/max": Max(num_tokens), "global_seqlen/min": Min(num_tokens)}


def _of_this_rank(groups: Sequence[Group]) -> Mapping[str, Metric]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        return {}
    scores = [trajectory.score for trajectory in trajectories]
    responses = [trajectory.length for trajectory in trajectories]
    prompts = [len(group.prompt.tokens) for group in groups for _ in group.trajectories]
    num_tokens = sum(prompts) + sum(len(trajectory.tokens) for trajectory in trajectories)
    return {
        **_spread("critic/score", scores),
        "critic/exact_match/mean": _mean([trajectory.exact for trajectory in trajectories]),
        **_by_source(groups),
        **_reported(trajectories),
        **_spread("critic/rewards", scores),
        **_spread("response_length", responses),
        **_spread("prompt_length", prompts),
        "response_length/clip_ratio": _mean([trajectory.truncated for trajectory in trajectories]),
        "perf/total_num_tokens": Sum(num_tokens),
    }


def _reported(trajectories: Sequence[Trajectory]) -> Mapping[str, Metric]:
    """Return the mean of each number that the task reported, over the answers for which it was reported."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            values.setdefault(f"reward/{name}/mean", []).append(value)
    return {key: _mean(found) for key, found in values.items()}


def _by_source(groups: Sequence[Group]) -> Mapping[str, Metric]:
    """Return the mean score and the number of groups of each task of a mixture."""
    found: dict[str, Metric] = {}
    for source in sorted({group.prompt.example.source for group in groups} - {""}):
        own = [group for group in groups if group.prompt.example.source == source]
        found[f"data/groups/{source}"] = Sum(len(own))
        found[f"critic/score/{source}/mean"] = _mean([one.score for group in own for one in group.trajectories])
    return found


def _spread(key: str, values: Sequence[float]) -> Mapping[str, Metric]:
    return {f"{key}/mean": _mean(values), f"{key}/max": Max(max(values)), f"{key}/min": Min(min(values))}


def _mean(values: Sequence[float]) -> Mean:
    return Mean(float(sum(values)), len(values))
