"""Prompts and groups as columns of plain data, so that thousands of answers are a few large arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hooktrainer.ports import Example, Group, Mask, Messages, Prompt, Trajectory


def pack_prompts(prompts: Collection[Prompt]) -> Mapping[str, object]:
    """Return prompts as columns, the input of `unpack_prompts`."""
    return {
        "prompt": [_json_prompt(prompt.example) for prompt in prompts],
        "row": [dict(prompt.example.row) for prompt in prompts],
        "example": np.array([prompt.example.number for prompt in prompts], np.int64),
        "source": [prompt.example.source for prompt in prompts],
        **_packed("tokens", [prompt.tokens for prompt in prompts], np.int64),
    }


def unpack_prompts(state: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts packed by `pack_prompts`."""
    columns = (state["prompt"], state["row"], state["example"].tolist(), state["source"])
    return [
        Prompt(Example(*example), tokens)
        for example, tokens in zip(zip(*columns, strict=True), _unpacked("tokens", state), strict=True)
    ]


def pack_groups(groups: Sequence[Group]) -> Mapping[str, object]:
    """Return groups and their answers as columns, the input of `unpack_groups`."""
    answers = [answer for group in groups for answer in group.trajectories]
    return {
        "number": np.array([group.number for group in groups], np.int64),
        "stamp": np.array([group.stamp for group in groups], np.int64),
        "prompt": pack_prompts([group.prompt for group in groups]),
        "answers": np.array([len(group.trajectories) for group in groups], np.int64),
        "score": np.array([answer.score for answer in answers], np.float64),
        "exact": np.array([answer.exact for answer in answers], np.bool_),
        "metrics": [dict(answer.metrics) for answer in answers],
        "truncated": np.array([answer.truncated for answer in answers], np.bool_),
        "text": [answer.text for answer in answers],
        **_packed("tokens", [answer.tokens for answer in answers], np.int64),
        **_packed("logprobs", [answer.logprobs for answer in answers], np.float32),
        **_packed("versions", [answer.versions for answer in answers], np.int64),
        **_packed_masks(answers),
        **_packed_turns(answers),
    }


def unpack_groups(state: Mapping[str, Any]) -> list[Group]:
    """Return the groups packed by `pack_groups`."""
    names = ("score", "exact", "truncated", "text", "metrics", "tokens", "logprobs", "versions", "loss_mask", "turns")
    plain = [state[name].tolist() for name in names[:3]] + [state[name] for name in names[3:5]]
    arrays = [_unpacked(name, state) for name in names[5:8]]
    rows = zip(
        *plain, *arrays, _unpacked_masks(state, len(arrays[0])), _unpacked_turns(state, len(arrays[0])), strict=True
    )
    answers = iter([Trajectory(**dict(zip(names, row, strict=True))) for row in rows])
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


def _json_prompt(example: Example) -> str | Messages:
    return example.prompt if isinstance(example.prompt, str) else [dict(message) for message in example.prompt]


def _packed(key: str, arrays: Sequence[NDArray[Any]], dtype: type) -> Mapping[str, object]:
    return {
        key: np.concatenate([np.asarray(array, dtype) for array in arrays]) if arrays else np.empty(0, dtype),
        f"{key}_lengths": np.array([len(array) for array in arrays], np.int64),
    }


def _unpacked(key: str, state: Mapping[str, Any]) -> list[NDArray[Any]]:
    ends = np.cumsum(state[f"{key}_lengths"])
    return [array.copy() for array in np.split(state[key], ends[:-1])] if len(ends) else []


def _packed_masks(answers: Sequence[Trajectory]) -> Mapping[str, object]:
    """Return the masks as a column; nothing if no answer has one."""
    if all(answer.loss_mask is None for answer in answers):
        return {}
    masks = [np.empty(0, np.bool_) if answer.loss_mask is None else answer.loss_mask for answer in answers]
    return _packed("loss_mask", masks, np.bool_)


def _unpacked_masks(state: Mapping[str, Any], count: int) -> Sequence[Mask | None]:
    if "loss_mask" not in state:
        return [None] * count
    return [mask if len(mask) else None for mask in _unpacked("loss_mask", state)]


def _packed_turns(answers: Sequence[Trajectory]) -> Mapping[str, object]:
    """Return the turns as a column; nothing if no answer has several."""
    return {"turns": [list(answer.turns) for answer in answers]} if any(answer.turns for answer in answers) else {}


def _unpacked_turns(state: Mapping[str, Any], count: int) -> Sequence[tuple[str, ...]]:
    return [tuple(turns) for turns in state.get("turns", [()] * count)]
