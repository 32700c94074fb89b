"""Options of all built-in engines."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import attrs
from attrs.validators import and_, ge, gt, in_, instance_of, optional

from hooktrainer._util.durations import is_duration
from hooktrainer.models.device import device_option

COUNT = and_(instance_of(int), ge(1))


@attrs.frozen(kw_only=True)
class SamplingOptions:
    """How prompts are answered."""

    n: int = attrs.field(default=8, validator=COUNT)
    """Answers to each prompt: the size of a group."""
    temperature: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Sampling temperature. The learner computes log-probabilities at the same temperature."""
    max_response_length: int = attrs.field(default=16, validator=COUNT)
    """Largest number of tokens of an answer, the end token included."""
    max_prompt_length: int | None = attrs.field(default=None, validator=optional(COUNT))
    """Largest number of tokens of a prompt; the longest prompt of a task over characters, else 512, if left out."""
    overlong_prompts: Literal["filter", "error", "left", "right"] = attrs.field(
        default="filter", validator=in_(("filter", "error", "left", "right"))
    )
    """Longer prompts are left out and counted in `data/filtered_too_long` (`filter`), fail the run (`error`), or are
    cut on one side (`left`, `right`)."""
    batching: Literal["continuous", "group"] = attrs.field(default="continuous", validator=in_(("continuous", "group")))
    """`continuous`: the slot of an answer that ends is refilled at once, so a long answer delays no other. `group`: a
    worker decodes one group at a time, so log-probabilities repeat bit for bit. Tokens repeat with either."""
    slots: int = attrs.field(default=256, validator=COUNT)
    """Answers that a worker decodes at once with `batching: continuous`."""
    on_sync: Literal["finish", "continue"] = attrs.field(default="finish", validator=in_(("finish", "continue")))
    """Weights of an answer in flight after a weight sync. `finish`: those that it started with. `continue`: the new
    ones from its next token (a partial rollout); its tokens so far are prefilled again."""
    sync_timeout_s: float = attrs.field(default=600.0, converter=float, validator=is_duration)
    """Seconds that a weight sync waits for answers that started two versions ago, and for each reply of a worker
    process. A process that exceeds it is killed and restarted; a thread that exceeds it fails the run."""
    max_turns: int = attrs.field(default=8, validator=COUNT)
    """Largest number of turns of an answer, for tasks with environments. `max_response_length` limits the tokens of all
    turns and observations together."""
    turn_timeout_s: float = attrs.field(default=60.0, converter=float, validator=is_duration)
    """Seconds that an environment may take for its reply to a turn, and to close."""
    tool_errors: Literal["fail", "observe"] = attrs.field(default="fail", validator=in_(("fail", "observe")))
    """An environment that raises an error or times out. `fail`: the group fails. `observe`: the policy reads the
    error."""


@attrs.frozen(kw_only=True)
class LocalOptions(SamplingOptions):
    """How prompts are answered in the process of the learner."""

    device: str = device_option()
    """Where answers are generated: `auto` (the device of the model), `cpu`, `cuda`, `cuda:1`."""


@runtime_checkable
class HasWorkers(Protocol):
    """Options of an engine that generates in workers, while the learner trains."""

    workers: int
    """Number of workers."""


@runtime_checkable
class HasSlots(Protocol):
    """Options of an engine whose workers decode many answers at once."""

    batching: str
    """`continuous`, or `group` for one group at a time."""
    n: int
    """Answers to each prompt."""
    slots: int
    """Answers that a worker decodes at once with `continuous`."""
