"""What stands behind the ports of a simulated run: the real buffer, and an engine and a learner that only take time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from hooktrainer.errors import StarvedError
from hooktrainer.ports import Batch, Floats, Group, Prompt, Replacement, ReplayBuffer, Tokens, Trajectory, WeightHolder
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.simulation.virtual_clock import VirtualClock

TOKENS_PER_SECOND: Final = 1000
"""Length stands for time, so that the ledger's lengths are lengths of generation, to the millisecond."""
_TICK_S: Final = 1e-6
"""Added to every wait for a time limit: the sum of two floats may fall short of the moment that they stand for."""
_HOPELESS: Final = 1000
"""Mini-batches dispatched for one to be sampled, after which none ever will be."""
_LONGEST: Final = 2**40
_TOKENS: Final = np.broadcast_to(np.int64(0), (_LONGEST,))  # views that take no memory
_LOGPROBS: Final = np.broadcast_to(np.float32(0), (_LONGEST,))


class VirtualBuffer(GroupBuffer):
    """The real buffer in one thread: to wait means to let the next thing happen. Its ledger is checked in every step.

    A real run that starves without a time limit waits for ever; here it ends with `StarvedError`.
    """

    def __init__(self, limits: ReplayOptions | None, clock: VirtualClock) -> None:
        super().__init__(limits, clock=clock, strict=True)
        self._virtual = clock
        self._num_dispatched = 0  # since the last batch
        self._wanted = (0, 0)  # groups, step
        self.on_dispatch: Callable[[], None] = lambda: None
        """Called when groups became pending, as waiting threads would be woken."""

    def dispatch(self, prompts: Sequence[Prompt], groups_per_step: int | None = None) -> int:
        """As in the real buffer."""
        thrown_away = super().dispatch(prompts, groups_per_step)
        if not prompts:
            return 0
        self._num_dispatched += len(prompts)
        size, step = self._wanted
        if size and self._num_dispatched > _HOPELESS * size:
            raise StarvedError(
                f"starved: no mini-batch of {size} could be sampled in step {step}, though {self._num_dispatched} "
                f"groups were dispatched for it; the strategy {self._policy!r} lets none through"
            )
        self.on_dispatch()
        return thrown_away

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Replacement]], None]) -> Batch:
        """As in the real buffer."""
        self._wanted, self._num_dispatched = (size, step), 0
        batch = super().sample(size, step, refill)
        self._wanted = (0, 0)
        return batch

    def _wait(self, seconds: float) -> bool:
        if self._virtual.run_next(within=seconds):
            self._virtual.advance(0)  # all that happens at one moment is seen at once
        else:
            self._virtual.advance(seconds + _TICK_S)
        return True  # a reminder after a minute is for people


class SimulatedHolder:
    """Holds version numbers in place of weights: the one in use and the one before."""

    def __init__(self) -> None:
        self._held = [-1]
        self._staged: int | None = None

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        return self._held[-1]

    def spec(self) -> None:
        """It takes everything."""

    def stage(self, weights: Any, version: int) -> Mapping[str, int]:  # noqa: ARG002 (there are none)
        """Take note of the version."""
        self._staged = version
        return {}

    def pause(self) -> None:
        """A flip takes no time."""

    def flip(self) -> None:
        """Hold the staged version from now on."""
        assert self._staged is not None, "nothing is staged"
        self._held = [self._held[-1], self._staged]
        self._staged = None

    def unflip(self) -> None:
        """Go back to the version before."""
        self._staged = None
        self._held = self._held[:1]

    def resume(self) -> None:
        """It was never paused."""

    def logprobs(self, tokens: Tokens) -> Floats:
        """Nothing can be asked of it."""
        raise NotImplementedError


class SimulatedEngine(SimulatedHolder):
    """Generates up to `groups_at_once` groups, each in its own time; the place of one that ends is taken at once.

    Unless it `overlaps`, it works only while the loop waits for it.
    """

    def __init__(
        self, clock: VirtualClock, seconds: Callable[[Group], float], *, groups_at_once: int, overlaps: bool
    ) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self._groups_at_once = groups_at_once
        self._overlaps = overlaps
        self._buffer: ReplayBuffer | None = None
        self._running: dict[int, float] = {}  # since when, by dispatch number
        self._busy_s = 0.0
        self.claimed: list[float] = []
        """Seconds that each claimed group takes."""
        self.tokens = 0
        """Generated, whether anybody wanted them or not."""

    @property
    def busy_s(self) -> float:
        """Seconds of work until now, summed over the places."""
        return self._busy_s + sum(self._clock.now() - since for since in self._running.values())

    def start(self, buffer: ReplayBuffer) -> None:
        """Begin to serve."""
        self._buffer = buffer

    def pump(self) -> None:
        """Work off all that is pending, if it works only while it is waited for."""
        self.serve()
        while not self._overlaps and self._running:
            self._clock.run_next()

    def serve(self) -> None:
        """Claim for the places that are free."""
        free = self._groups_at_once - len(self._running)
        if self._buffer is None or not free:
            return
        for group in self._buffer.claim(free, block=False):
            seconds = self._seconds(group)
            self.claimed.append(seconds)
            self._running[group.number] = self._clock.now()
            self._clock.schedule(seconds, partial(self._end, group, self.version, seconds))

    def _end(self, group: Group, version: int, seconds: float) -> None:
        """Hand a group in, and claim the next one."""
        self._busy_s += self._clock.now() - self._running.pop(group.number)
        length = min(max(1, round(seconds * TOKENS_PER_SECOND)), _LONGEST)
        self.tokens += length
        if self._buffer is not None:
            self._buffer.finish(group, [_answer(length, version)])
            self.serve()

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """Nothing can be asked of it."""
        raise NotImplementedError

    def take_metrics(self) -> Mapping[str, object]:
        """None."""
        return {}

    def close(self) -> None:
        """Serve no more."""
        self._buffer = None


def _answer(length: int, version: int) -> Trajectory:
    return Trajectory(
        tokens=_TOKENS[:length],
        logprobs=_LOGPROBS[:length],
        score=1.0,
        versions=np.broadcast_to(np.int64(version), (length,)),
    )


class SimulatedLearner:
    """Takes the time of an update."""

    def __init__(self, clock: VirtualClock, seconds: Callable[[int], float]) -> None:
        self.skips_nonfinite = False
        self._clock = clock
        self._seconds = seconds
        self.busy_s = 0.0
        """Seconds of work."""
        self.batches: list[tuple[int, ...]] = []
        """Dispatch numbers of every update."""

    def start_step(self, step: int) -> None:
        """Nothing is kept."""

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Let the time of one mini-batch pass."""
        seconds = self._seconds(len(self.batches))
        self.batches.append(tuple(group.number for group in groups))
        self.busy_s += seconds
        self._clock.advance(seconds)
        return {}

    def weights(self) -> Any:
        """None."""
        return {}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Nothing can be asked of it."""
        raise NotImplementedError

    def state_dict(self) -> Mapping[str, object]:
        """Nothing is kept of a simulation."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept of a simulation."""


class SimulatedTransport:
    """Takes the time of a weight sync, while the engine goes on; the first publish is free."""

    def __init__(self, clock: VirtualClock, seconds: Callable[[int], float]) -> None:
        self._clock = clock
        self._seconds = seconds
        self.busy_s = 0.0
        """Seconds of work."""

    def publish(
        self, weights: Any, version: int, engines: Sequence[WeightHolder], **_options: Any
    ) -> Mapping[str, object]:
        """Let the time pass, and move every engine."""
        seconds = self._seconds(version) if version else 0.0
        self.busy_s += seconds
        self._clock.advance(seconds)
        for engine in engines:
            engine.stage(weights, version)
            engine.flip()
        return {}


class NumberedPrompts:
    """Prompts without end, each another one."""

    exhausted = False

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def take(self, count: int) -> Sequence[Prompt]:
        """The next prompts."""
        return [Prompt(str(number), np.array([number])) for number in itertools.islice(self._numbers, count)]

    def heldout(self, count: int) -> Sequence[Prompt]:
        """None."""
        return [][:count]

    def state_dict(self) -> Mapping[str, object]:
        """Nothing is kept of a simulation."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept of a simulation."""
