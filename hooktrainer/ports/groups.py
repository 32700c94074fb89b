"""The data of a run: examples, prompts, trajectories, groups and batches. NumPy only, no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict

import attrs
import numpy as np
from attrs.converters import optional
from attrs.validators import deep_iterable, ge
from numpy.typing import NDArray

from hooktrainer.errors import RolloutError, RunError

Tokens: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]
SCORE_TOLERANCE: Final = 1e-9
"""Difference up to which scores are equal: partial credit is a sum with rounding errors."""
Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation: messages with `role` and `content`, and further keys that a chat template reads."""


@attrs.frozen
class Example:
    """One row of a task: a prompt, and the data that its answers are scored with."""

    prompt: str | Messages
    """A text, or the messages of a conversation."""
    row: Mapping[str, Any] = attrs.field(factory=dict)
    """Columns of the data by name: the truth, and everything else that reward functions read. Plain JSON values."""
    number: int = 0
    """Number of the row in its data, from 0."""
    source: str = ""
    """Name of the data that the row comes from, if a task mixes several."""

    @property
    def text(self) -> str:
        """The prompt as one text, for errors and logs."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in self.prompt)


@attrs.frozen(eq=False)
class Prompt:
    """A tokenized example, which the policy answers `rollout.n` times."""

    example: Example
    tokens: Tokens
    """Shape (Q,)."""

    @property
    def text(self) -> str:
        """The prompt as one text, for errors and logs."""
        return self.example.text


def _as_mask(values: Any) -> Mask:
    return np.asarray(values, np.bool_)


@attrs.frozen(eq=False, kw_only=True)
class Trajectory:
    """One answer to a prompt, as it was sampled."""

    tokens: Tokens
    """Response tokens, with the end token if it was sampled. Shape (T,)."""
    logprobs: Floats
    """Log-probabilities under the behaviour policy, at the sampling temperature. Shape (T,)."""
    score: float
    """Score of the task."""
    exact: bool = attrs.field()
    """Whether the answer has full marks; by default, whether the score is 1."""
    metrics: Mapping[str, float] = attrs.field(factory=dict)
    """Further numbers that the task reports for the answer, by name."""
    text: str = ""
    turns: tuple[str, ...] = ()
    """Turns of the policy and the replies of its environment by turns, the policy first; empty if it had no reply."""
    truncated: bool = False
    """Whether the answer was cut off at `rollout.max_response_length`."""
    versions: Tokens
    """Version that each token was sampled from, non-decreasing. Shape (T,)."""
    loss_mask: Mask | None = attrs.field(default=None, converter=optional(_as_mask))
    """True for the tokens that the policy sampled, shape (T,); None if it sampled all of them.

    Others, such as the output of a tool, are context only: they are not trained on, no length counts them, and their
    log-probabilities and versions are not read."""

    @exact.default
    def _exact(self) -> bool:
        return abs(self.score - 1.0) <= SCORE_TOLERANCE

    @loss_mask.validator
    def _has_length(self, _: object, mask: Mask | None) -> None:
        if mask is not None and mask.shape != (len(self.tokens),):
            raise RolloutError(
                f"loss_mask: expected one boolean for each of the {len(self.tokens)} tokens, found shape {mask.shape}"
            )

    @property
    def length(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.tokens) if self.loss_mask is None else int(self.loss_mask.sum())

    @property
    def span(self) -> int:
        """Number of versions from the first sampled token to the last; 1 if all have the same version."""
        versions = self.versions if self.loss_mask is None else self.versions[self.loss_mask]
        return int(versions[-1] - versions[0]) + 1 if len(versions) else 1


@attrs.frozen(eq=False, kw_only=True)
class Group:
    """A prompt and its answers: the unit of dispatch, sampling, dropping and advantage."""

    number: int
    """Dispatch number, from 0, unique in a run."""
    stamp: int
    """Published version at dispatch, plus 1."""
    prompt: Prompt
    trajectories: tuple[Trajectory, ...] = ()

    def staleness(self, step: int) -> int:
        """Return S = k - p + 1 for step k and stamp p; 1 is fresh."""
        return step - self.stamp + 1

    def check_step(self, step: int) -> None:
        """Raise `RunError` if the group is stamped for a later step, which gives a staleness below 1."""
        if self.stamp > step:
            raise RunError(
                f"the version went backwards: group {self.number} is stamped {self.stamp}, but is sampled in step "
                f"{step} (S={self.staleness(step)}, expected at least 1). A part of the run was restored from another "
                "checkpoint, or its version was set by hand"
            )

    @property
    def in_flight(self) -> int:
        """Versions published while the group was generated: the largest span minus 1."""
        return max((trajectory.span for trajectory in self.trajectories), default=1) - 1

    @property
    def scores_differ(self) -> bool:
        """Whether the answers have different scores, so that their group-relative advantages are not 0."""
        scores = [trajectory.score for trajectory in self.trajectories]
        return max(scores, default=0.0) - min(scores, default=0.0) > SCORE_TOLERANCE

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all answers that the policy sampled."""
        return sum(trajectory.length for trajectory in self.trajectories)


FailureReason: TypeAlias = Literal["error", "cancelled", "timeout", "worker_died"]
"""Why a group could not be generated."""


@attrs.frozen(eq=False)
class Replacement:
    """A request to dispatch a group in place of one that was dropped or failed."""

    prompt: Prompt | None = None
    """The prompt to dispatch again; a new prompt if None."""


Lost: TypeAlias = Replacement
"""Former name of `Replacement`."""


class Ages(TypedDict):
    """The fields of `IterationEnd` that describe the age of a batch."""

    groups: tuple[int, ...]
    in_flight: tuple[int, ...]
    updates_behind: tuple[int, ...]
    spans: tuple[int, ...]
    evicted: tuple[int, ...]
    samples: int


@attrs.frozen(eq=False, kw_only=True)
class Batch:
    """The groups of one iteration, and the staleness of those evicted while sampling them."""

    groups: tuple[Group, ...] = ()
    evicted: tuple[int, ...] = attrs.field(default=(), validator=deep_iterable(ge(1)))
    """Staleness of each group that was evicted while sampling."""

    def ages(self, step: int, iteration: int, updates_per_step: int) -> Ages:
        """Return the age of the batch if it is trained in this iteration of a step, counted from 0.

        Raises `RunError` if a group is stamped for a later step.
        """
        for group in self.groups:
            group.check_step(step)
        staleness = tuple(group.staleness(step) for group in self.groups)
        spans = tuple(trajectory.span for group in self.groups for trajectory in group.trajectories)
        return Ages(
            groups=staleness,
            in_flight=tuple(group.in_flight for group in self.groups),
            updates_behind=tuple((s - 1) * updates_per_step + iteration for s in staleness),
            spans=spans,
            evicted=self.evicted,
            samples=len(spans),
        )
