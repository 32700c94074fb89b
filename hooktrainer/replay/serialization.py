"""Prompts and groups as columns of plain data, so that thousands of answers are a few large arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hooktrainer.ports import Group, Prompt, Trajectory


def pack_prompts(prompts: Collection[Prompt]) -> Mapping[str, object]:
    """Return prompts as columns, the input of `unpack_prompts`."""
    return {
        "text": [prompt.text for prompt in prompts],
        "truth": [prompt.truth for prompt in prompts],
        **_packed("tokens", [prompt.tokens for prompt in prompts], np.int64),
    }


def unpack_prompts(state: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts packed by `pack_prompts`."""
    rows = zip(state["text"], _unpacked("tokens", state), state["truth"], strict=True)
    return [Prompt(text, tokens, truth) for text, tokens, truth in rows]


def pack_groups(groups: Sequence[Group]) -> Mapping[str, object]:
    """Return groups and their answers as columns, the input of `unpack_groups`."""
    answers = [answer for group in groups for answer in group.trajectories]
    return {
        "number": np.array([group.number for group in groups], np.int64),
        "stamp": np.array([group.stamp for group in groups], np.int64),
        "prompt": pack_prompts([group.prompt for group in groups]),
        "answers": np.array([len(group.trajectories) for group in groups], np.int64),
        "score": np.array([answer.score for answer in answers], np.float64),
        "truncated": np.array([answer.truncated for answer in answers], np.bool_),
        "text": [answer.text for answer in answers],
        **_packed("tokens", [answer.tokens for answer in answers], np.int64),
        **_packed("logprobs", [answer.logprobs for answer in answers], np.float32),
        **_packed("versions", [answer.versions for answer in answers], np.int64),
    }


def unpack_groups(state: Mapping[str, Any]) -> list[Group]:
    """Return the groups packed by `pack_groups`."""
    columns = (state["score"].tolist(), state["truncated"].tolist(), state["text"])
    rows = zip(*columns, *(_unpacked(key, state) for key in ("tokens", "logprobs", "versions")), strict=True)
    answers = iter(
        Trajectory(tokens=tokens, logprobs=logprobs, score=score, text=text, truncated=truncated, versions=versions)
        for score, truncated, text, tokens, logprobs, versions in list(rows)
    )
    heads = zip(
        state["number"].tolist(),
        state["stamp"].tolist(),
        unpack_prompts(state["prompt"]),
        state["answers"].tolist(),
        strict=True,
    )
    return [
        Group(number=number, stamp=stamp, prompt=prompt, trajectories=tuple(next(answers) for _ in range(count)))
        for number, stamp, prompt, count in heads
    ]


def _packed(key: str, arrays: Sequence[NDArray[Any]], dtype: type) -> Mapping[str, object]:
    return {
        key: np.concatenate([np.asarray(array, dtype) for array in arrays]) if arrays else np.empty(0, dtype),
        f"{key}_lengths": np.array([len(array) for array in arrays], np.int64),
    }


def _unpacked(key: str, state: Mapping[str, Any]) -> list[NDArray[Any]]:
    ends = np.cumsum(state[f"{key}_lengths"])
    return [array.copy() for array in np.split(state[key], ends[:-1])] if len(ends) else []
