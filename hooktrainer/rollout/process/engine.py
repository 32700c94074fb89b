"""An engine with worker processes: they sample while the learner learns, each on a core of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np
from attrs.validators import and_, ge, instance_of

from hooktrainer.errors import ConfigError
from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, ReplayBuffer, RolloutEngine, Task, Tokens
from hooktrainer.rollout.engine import Engine
from hooktrainer.rollout.options import COUNT, Sampling
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.process.messages import Recipe
    from hooktrainer.rollout.process.pool import Fleet
    from hooktrainer.rollout.stats import Meter
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer, Modules


class Everyone:
    """All readers of the shared weights: this process, which validates with them, and the workers."""

    def __init__(self, modules: Modules, fleet: Fleet) -> None:
        self._modules = modules
        self._fleet = fleet

    def release(self, place: int) -> None:
        """Return once nobody reads this set, which is not the one in use."""
        self._modules.release(place)
        self._fleet.release(place)

    def hurry(self) -> None:
        """A sync is being undone: wait for no worker longer than a moment."""
        self._fleet.hurry()

    def pause(self) -> None:
        """Return once nobody begins an answer, until `resume`."""
        self._modules.pause()
        self._fleet.pause()

    def use(self, place: int, version: int) -> None:
        """Return once everybody gives this set to new answers."""
        try:
            self._fleet.use(place, version)
        finally:  # also where no worker is left to be told
            self._modules.use(place, version)

    def resume(self) -> None:
        """Let answers begin again."""
        self._modules.resume()
        self._fleet.resume()


class ProcessEngine(Engine):
    """Workers are processes that have mapped the one copy of the weights."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, fleet: Fleet, meter: Meter) -> None:
        super().__init__(generator, weights, meter)
        self._fleet = fleet

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probabilities by the weights in use, (L,) -> (R, L - 1): of this process, and of every worker."""
        return np.stack([super().logprobs(tokens), *self._fleet.score(tokens)])

    def start(self, buffer: ReplayBuffer) -> None:
        """Spawn the workers, which takes them a few seconds; they begin as they get ready."""
        super().start(buffer)
        self._fleet.start(buffer)

    def pump(self) -> None:
        """Raise if workers died too often, so that nobody waits for them."""
        self._fleet.raise_if_died()

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        self._meter.record({"rollout/restarts": Sum(0)})
        return super().take_metrics()

    def close(self) -> None:
        """Close the buffer that it serves, and end every process and thread within seconds."""
        self._fleet.close()


@attrs.frozen(kw_only=True)
class Process(Sampling):
    """Sample in processes of their own, while the learner learns: neither slows the other down."""

    workers: int = attrs.field(default=2, validator=COUNT)
    """Worker processes."""
    intra_op_threads: int = attrs.field(default=1, validator=COUNT)
    """Threads of one torch operation, in each worker."""
    max_restarts: int = attrs.field(default=3, validator=and_(instance_of(int), ge(0)))
    """How often each worker is started anew after it died, before the run fails."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """The engine; `policy` makes a new module of the learner's architecture at each call."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.generation import Generator
        from hooktrainer.rollout.process.messages import Recipe
        from hooktrainer.rollout.process.pool import Fleet
        from hooktrainer.rollout.process.shared_memory import Layout, adopt
        from hooktrainer.rollout.stats import Meter
        from hooktrainer.weight_sync.double_buffer import DoubleBuffer, Modules
        from hooktrainer.weight_sync.torn_reads import Witness

        modules, meter, witness = Modules(policy, self.sync_timeout_s), Meter(), Witness()
        layout = Layout.of(full_state(modules.modules[0]))
        recipe = Recipe(
            policy=policy,
            tokenizer=tokenizer,
            task=task,
            seed=seed,
            options=self,
            layout=layout,
            intra_op_threads=self.intra_op_threads,
        )
        packed = _packed(recipe)
        flats = [layout.allocate() for _ in modules.modules]
        sets = [layout.views(flat) for flat in flats]
        for module, tensors in zip(modules.modules, sets, strict=True):
            adopt(module, tensors)
        fleet = Fleet(
            packed,
            flats,
            workers=self.workers,
            max_restarts=self.max_restarts,
            sync_timeout_s=self.sync_timeout_s,
            meter=meter,
            witness=witness,
        )
        generator = Generator(weights=modules, tokenizer=tokenizer, task=task, seed=seed, options=self)
        return ProcessEngine(generator, DoubleBuffer(sets, Everyone(modules, fleet), witness), fleet, meter)


def _packed(recipe: Recipe) -> bytes:
    from hooktrainer.rollout.process.messages import pack

    try:
        return pack(recipe)
    except Exception as error:
        raise ConfigError(
            f"model and task go to other processes, but cannot be pickled: {error}. Classes and functions have to be "
            "on the top level of a module or of a file; `rollout: {use: thread}` needs no pickling"
        ) from error
