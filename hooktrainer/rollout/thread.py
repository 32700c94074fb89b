"""An engine with worker threads: they sample while the learner learns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from hooktrainer.errors import RolloutError
from hooktrainer.ports import ReplayBuffer, RolloutEngine, Task
from hooktrainer.rollout.engine import LocalEngine
from hooktrainer.rollout.options import COUNT, Sampling
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generator import Generator


class ThreadEngine(LocalEngine):
    """Each worker claims what is pending and generates it as one batch, on one version."""

    def __init__(self, generator: Generator, max_batch_groups: int | None, workers: int) -> None:
        super().__init__(generator, max_batch_groups)
        self._num_workers = workers
        self._workers: list[threading.Thread] = []
        self._died: BaseException | None = None

    def start(self, buffer: ReplayBuffer) -> None:
        """Start the workers."""
        super().start(buffer)
        for number in range(self._num_workers):
            worker = threading.Thread(target=self._work, args=(buffer,), name=f"rollout-{number}")
            worker.start()
            self._workers.append(worker)

    def pump(self) -> None:
        """Raise if a worker died, so that nobody waits for it."""
        if self._died is not None:
            raise RolloutError(f"a rollout worker died: {self._died!r}") from self._died

    def close(self) -> None:
        """Close the buffer that it serves, which ends every wait there, and join the workers."""
        if self._buffer is not None:
            self._buffer.close()
        while self._workers:
            self._workers.pop().join()
        self._buffer = None

    def _work(self, buffer: ReplayBuffer) -> None:
        try:
            while groups := buffer.claim(self._limit):
                self._serve(buffer, groups)
        except BaseException as error:  # noqa: BLE001 - raised again on the loop's thread, which the close wakes
            self._died = error
            buffer.close()


@attrs.frozen(kw_only=True)
class Thread(Sampling):
    """Sample in threads of this process, while the learner learns."""

    workers: int = attrs.field(default=1, validator=COUNT)
    """Worker threads."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """The engine; `policy` makes a new module of the learner's architecture at each call."""
        generator = self.generator(policy=policy, tokenizer=tokenizer, task=task, seed=seed)
        return ThreadEngine(generator, self.max_batch_groups, self.workers)
