"""Reward functions of the three kinds, for 05_reward.yaml, 06_reward_verl.yaml and 07_reward_trl.yaml."""

# ruff: noqa: ARG001 (verl and TRL determine the parameters)

from typing import Any


def is_right(answer: str, truth: str) -> float:
    """Score one answer."""
    return float(answer == truth)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    """Score one answer, as verl calls a function. The score has partial credit; the other numbers become metrics."""
    right = solution_str == ground_truth
    return {"score": 1.0 if right else 0.1 * solution_str.isdigit(), "accuracy": float(right)}


def accuracy_reward(completions: list[str], reward_model: list[dict[str, str]], **kwargs: Any) -> list[float]:
    """Score all answers to a prompt, as TRL calls a function with columns of the data."""
    return [float(text == row["ground_truth"]) for text, row in zip(completions, reward_model, strict=True)]


def length_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Score short answers higher."""
    return [-float(len(ids)) for ids in completion_ids]
