"""Readers never see a mix of two versions while weights are synced."""

from __future__ import annotations

import threading

import attrs
import pytest
import torch
from torch import Tensor

from helpers.rollouts import LENGTH, TASK, Queue, Versioned, generator_config, groups, versions_of
from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.weight_sync.same_host import SameHostTransport

SYNCS, COPIES, READERS, SHARES = 200, 10_000, 4, 50
BUCKET_BYTES = 40_000  # a tensor


def test_copies_taken_during_syncs_have_one_version() -> None:
    engine = ThreadOptions(n=2, max_response_length=LENGTH).build(generator_config(Versioned))
    modules, transport = engine._generator.weights, SameHostTransport()
    transport.publish(Versioned.state(0), 0, [engine], bucket_bytes=BUCKET_BYTES)
    torn: list[object] = []
    copied: list[int] = []
    # A share of the copies starts after its syncs. The syncs of the share after the next wait for its first copy.
    # Each share therefore has a copy of one of its own versions, under any load.
    synced, copied_once = ([threading.Event() for _ in range(SHARES)] for _ in range(2))
    synced[0].set()

    def read() -> None:
        copies: dict[str, Tensor] = {name: torch.empty(10_000) for name in "abc"}
        for number in range(COPIES // READERS):
            share = number * SHARES * READERS // COPIES
            synced[share].wait()
            with modules.reading() as (module, version):
                for name, tensor in full_state(module).items():
                    copies[name].copy_(tensor)
            ends = {float(end) for copy in copies.values() for end in copy.aminmax()}
            copied.append(version)
            copied_once[share].set()
            if ends != {float(version)}:
                torn.append((version, ends))

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    for version in range(1, SYNCS + 1):
        transport.publish(Versioned.state(version), version, [engine], bucket_bytes=BUCKET_BYTES)
        share = version * SHARES // SYNCS
        if share < SHARES:
            synced[share].set()
            copied_once[max(share - 1, 0)].wait()
    for reader in readers:
        reader.join()

    assert torn == []
    assert len(copied) == COPIES
    assert engine.version == SYNCS
    assert len(set(copied)) > 20


@pytest.mark.slow
def test_worker_processes_sample_each_group_from_one_version() -> None:
    engine = ProcessOptions(n=2, max_response_length=LENGTH, workers=2).build(generator_config(Versioned))
    transport, queue = SameHostTransport(), Queue(groups(4))
    try:
        transport.publish(Versioned.state(0), 0, [engine], bucket_bytes=BUCKET_BYTES)
        engine.start(queue)
        queue.wait_for(4)
        for version in range(1, SYNCS + 1):
            queue.dispatch([attrs.evolve(groups(1)[0], number=10 + version)])
            transport.publish(Versioned.state(version), version, [engine], bucket_bytes=BUCKET_BYTES)
        queue.wait_for(4 + SYNCS)
        engine.pump()
    finally:
        engine.close()
    assert queue.failed == {}  # a mix of versions gives logits that are not finite
    seen = {version for answers in queue.finished.values() for version in versions_of(answers)}
    assert len(seen) > 5


def overwrite_set_in_use(engine: object) -> None:
    """Overwrite the weights in use, as a sync without a double buffer would."""
    module = engine._generator.weights.in_use
    with torch.no_grad():
        module.a.fill_(99.0)
        module.b.fill_(99.0)
        module.c.fill_(99.0)  # uniform, so that the logits remain finite


@pytest.mark.parametrize("name", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_overwriting_the_weights_in_use_ends_the_run(name: str) -> None:
    options = {"inline": InlineOptions, "thread": ThreadOptions, "process": ProcessOptions}[name](
        n=2, max_response_length=LENGTH
    )
    engine = options.build(generator_config(Versioned, TASK, 0))
    queue = Queue(groups(2))
    try:
        SameHostTransport().publish(Versioned.state(1), 1, [engine])
        engine.start(queue)
        if name == "inline":
            engine.pump()
        queue.wait_for(2)
        overwrite_set_in_use(engine)
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(2)])
        if name == "inline":
            with pytest.raises(SyncError, match=r"group 1\d was sampled from torn weights: of version 1"):
                engine.pump()
        else:
            queue.wait_until(lambda: queue.closed)
            with pytest.raises((RolloutError, SyncError), match="was sampled from torn weights: of version 1"):
                engine.pump()
    finally:
        engine.close()
    assert queue.finished.keys() == {0, 1}
