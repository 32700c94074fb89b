"""What travels from a prompt to the learner: prompts, trajectories, groups. NumPy only; nothing here holds a tensor."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

import attrs
import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]


@attrs.frozen(eq=False)
class Prompt:
    """One question; it will be answered `rollout.n` times."""

    text: str
    tokens: Tokens
    """Shape (Q,)."""
    truth: str = ""
    """What a verifier compares answers with."""


@attrs.frozen(eq=False, kw_only=True)
class Trajectory:
    """One answer to a prompt, as the sampler produced it."""

    tokens: Tokens
    """Response tokens, the end token included if it was reached. Shape (T,)."""
    logprobs: Floats
    """Log-probabilities under the behaviour policy at sampling temperature. Shape (T,)."""
    score: float
    """What the task gave it, in [0, 1]."""
    text: str = ""
    truncated: bool = False
    """Cut off at the longest allowed response."""
    versions: Tokens
    """Version that each token was sampled from, never descending. Shape (T,)."""

    @property
    def span(self) -> int:
        """Versions it was generated across; 1 is a whole trajectory on one version."""
        return int(self.versions[-1] - self.versions[0]) + 1 if len(self.versions) else 1


@attrs.frozen(eq=False, kw_only=True)
class Group:
    """A prompt and its answers: the unit of dispatch, sampling, dropping and advantage."""

    number: int
    """Dispatch number, from 0, unique in a run."""
    stamp: int
    """Published version + 1, at dispatch."""
    prompt: Prompt
    trajectories: tuple[Trajectory, ...] = ()

    def staleness(self, step: int) -> int:
        """S = k - p + 1 if sampled in `step`; 1 is fresh."""
        return step - self.stamp + 1

    @property
    def in_flight(self) -> int:
        """Versions that passed while it was being generated: the widest span less 1."""
        return max((trajectory.span for trajectory in self.trajectories), default=1) - 1

    @property
    def num_tokens(self) -> int:
        """Response tokens over all answers."""
        return sum(len(trajectory.tokens) for trajectory in self.trajectories)


FailureReason: TypeAlias = Literal["error", "cancelled", "timeout", "worker_died"]
"""Why a group could not be generated."""


@attrs.frozen(eq=False)
class Lost:
    """A group that has to be replaced."""

    prompt: Prompt | None = None
    """The prompt to dispatch again; a new one if None."""


class Ages(TypedDict):
    """The fields of `IterationEnd` that say how old a batch is."""

    groups: tuple[int, ...]
    in_flight: tuple[int, ...]
    updates_behind: tuple[int, ...]
    spans: tuple[int, ...]
    evicted: tuple[int, ...]
    samples: int


@attrs.frozen(eq=False, kw_only=True)
class Batch:
    """The groups of one iteration, and what was thrown away to get them."""

    groups: tuple[Group, ...] = ()
    evicted: tuple[int, ...] = ()
    """Staleness of each group that was evicted while sampling."""

    def ages(self, step: int, iteration: int, updates_per_step: int) -> Ages:
        """How old the batch is when it is trained in this iteration of a step."""
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
