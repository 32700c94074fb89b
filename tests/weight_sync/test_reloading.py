"""Engines with one set of weights: a failed sync loads the version before again, and proves it by its canary."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.one_set import OneSet
from hooktrainer.errors import SyncError
from hooktrainer.ports import Canary
from hooktrainer.testing import FakeTransport

TOKENS = np.array([1, 2, 3])


def publish(engine: OneSet, version: int, transport: FakeTransport, *, first: bool = False) -> None:
    weight = -float(version)
    canary = Canary(tokens=TOKENS, logprobs=np.full(2, weight, np.float32), atol=1e-4)
    transport.publish({"w": weight}, version, [engine], canary=canary, first=first)


def published(*fails: object) -> tuple[OneSet, FakeTransport]:
    engine, transport = OneSet(), FakeTransport()
    publish(engine, 0, transport)
    engine.calls.clear()
    engine.fails += fails
    return engine, transport


def test_a_sync_loads_while_paused_and_scores_before_it_resumes() -> None:
    engine, transport = published()
    publish(engine, 1, transport)
    assert engine.calls == ["pause", ("load", 1), "logprobs", "resume"]
    assert (engine.version, engine.used) == (1, -1.0)


@pytest.mark.parametrize("fails", [("load", 1), "logprobs", "resume"])
def test_a_failure_after_the_load_loads_the_version_before_and_scores_its_canary(fails: object) -> None:
    engine, transport = published(fails)
    with pytest.raises(SyncError, match="version 1 was not published"):
        publish(engine, 1, transport)
    assert engine.calls[-3:] == [("load", 0), "logprobs", "resume"]
    assert (engine.version, engine.used) == (0, 0.0)
    publish(engine, 1, transport)
    assert (engine.version, engine.used) == (1, -1.0)


def test_a_failure_before_the_load_loads_nothing() -> None:
    engine, transport = published("pause")
    with pytest.raises(SyncError, match="pause failed"):
        publish(engine, 1, transport)
    assert engine.calls == ["pause", "resume"]
    assert (engine.version, engine.used) == (0, 0.0)


def test_old_weights_that_are_not_in_use_again_answer_no_request() -> None:
    engine, transport = published()
    engine.stale = {0}
    engine.fails.append("resume")
    with pytest.raises(SyncError) as caught:
        publish(engine, 1, transport)
    assert engine.calls.count("resume") == 1  # only that of the sync itself
    assert any("could not load its old weights again" in note for note in caught.value.__cause__.__notes__)


def test_a_failed_load_of_the_old_weights_is_repeated_once() -> None:
    engine, transport = published(("load", 1), ("load", 0))
    with pytest.raises(SyncError, match="version 1 was not published"):
        publish(engine, 1, transport)
    assert engine.calls[1:] == [("load", 1), ("load", 0), ("load", 0), "logprobs", "resume"]
    assert (engine.version, engine.used) == (0, 0.0)


def test_after_a_failed_first_sync_no_weights_are_confirmed() -> None:
    engine = OneSet("logprobs")
    with pytest.raises(SyncError):
        publish(engine, 0, FakeTransport(), first=True)
    assert (engine.version, engine.used) == (-1, None)


def test_an_engine_that_can_neither_switch_nor_load_is_refused() -> None:
    class Neither(OneSet):
        load = None  # type: ignore[assignment]

    with pytest.raises(SyncError, match=r"has no flip\(\), unflip\(\)"):
        publish(Neither(), 0, FakeTransport())
