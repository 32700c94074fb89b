"""Engine that has its prompts answered by inference servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, ReplayBuffer, Tokens
from hooktrainer.rollout.engine import GRACE_S, Engine
from hooktrainer.rollout.generation import Generator
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.server.group_feed import GroupFeed
from hooktrainer.rollout.server.pool import ServerPool
from hooktrainer.rollout.server.weight_folders import WeightFolders
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.options import SamplingOptions


class ServedGenerator(Generator):
    """Answers prompts on servers. The modules of this process only receive the weights."""

    def __init__(
        self, config: GeneratorConfig, options: SamplingOptions, weights: ModulePair, pool: ServerPool
    ) -> None:
        super().__init__(config, options, weights)
        self._pool = pool

    def _complete(self, requests: Sequence[Request]) -> None:
        """Answer requests greedily on all servers, and close their environments."""
        try:
            if requests:
                self._pool.answer(requests, self.turns)
        finally:
            self.end(requests)

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return log-probabilities from the weights in use, (L,) -> (R, L - 1): one row per server."""
        return self._pool.logprobs(tokens)


class ServerEngine(Engine):
    """Generates on servers with one set of weights each; see `hooktrainer.ports.ReloadingHolder`.

    Weights are staged in this process and written to a folder, which every server loads.
    """

    def __init__(
        self, generator: ServedGenerator, weights: DoubleBuffer, pool: ServerPool, folders: WeightFolders
    ) -> None:
        super().__init__(generator, weights)
        self._pool = pool
        self._folders = folders
        self._feed: GroupFeed | None = None

    def pause(self) -> None:
        """Write the staged weights, then begin no request; with `on_sync: finish`, wait for those in flight."""
        if (staged := self._weights.staging) is not None:
            self._weights.check_staged()
            module = self._generator.weights.modules[self._weights.spare]
            self._folders.write(module, staged, keep=self.version)
        if self._feed is not None:
            self._feed.hold()
        self._pool.pause()

    def load(self, version: int) -> None:
        """Let every server load the staged weights, or again those of the version before."""
        try:
            if version < 0:
                self._pool.forget()
            else:
                self._pool.load(version, self._folders.path(version), f"{self._folders.name}/{version}")
            if version == self._weights.staging:
                self._weights.flip()
            elif version != self.version or self._weights.staging is not None:
                self._weights.unflip()
        finally:
            self._stats.end_sync()

    def resume(self) -> None:
        """Let new requests start. Staged weights that were not loaded are discarded by the next sync."""
        if self.version >= 0:
            self._pool.resume()
            if self._feed is not None:
                self._feed.open()
        self._stats.end_sync()

    def start(self, buffer: ReplayBuffer) -> None:
        """Start to answer the groups of this buffer."""
        super().start(buffer)
        self._pool.start(buffer)
        self._feed = GroupFeed(self._pool, buffer, self._generator, self._stats)
        if self.version >= 0:
            self._feed.open()

    def describe_workers(self, group: int | None = None) -> str:
        """Describe the server that answers a group, or with None all servers."""
        return self._pool.describe(group)

    def pump(self) -> None:
        """Raise the error that ended generation, such as a server that refuses requests."""
        self._pool.loop.raise_if_failed()

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        self._stats.record({"rollout/servers_dropped": Sum(self._pool.take_dropped())})
        return super().take_metrics()

    def close(self) -> None:
        """End all requests and threads, and remove the weights. Servers are left as they are."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
        try:
            self._pool.close()
        finally:
            if feed is not None:
                feed.join()
            self._buffer = None
            self._end_rewards(GRACE_S)
            self._folders.remove()
