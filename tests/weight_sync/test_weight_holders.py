"""The contract of `WeightHolder`, kept alike by all built-in engines and by the fake one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
import numpy as np
import pytest
from torch import Tensor

from helpers.rollouts import LENGTH, Queue, generator_config, groups, versions_of
from helpers.stale_heads import policy
from hooktrainer.errors import SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.ports import RolloutEngine, Weights
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.testing import FakeEngine, FakeTransport
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.same_host import SameHostTransport

TOKENS = np.array([4, 2, 3, 5, 2])


def weights_of(version: int) -> dict[str, Tensor]:
    """Return weights that differ from those of every other version."""
    return dict(full_state(policy(seed=version)))


def make(name: str) -> RolloutEngine:
    if name == "fake":
        return FakeEngine()
    options = {"n": 2, "max_response_length": LENGTH}
    kinds = {
        "inline": InlineOptions(**options),
        "thread": ThreadOptions(**options),
        "process": ProcessOptions(**options, workers=1),
    }
    return kinds[name].build(generator_config(policy))


@pytest.fixture(params=["fake", "inline", "thread", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[RolloutEngine]:
    """An engine that holds version 1."""
    made = make(request.param)
    publish(made, 1)
    yield made
    made.close()


def publish(engine: RolloutEngine, version: int, transport: type = SameHostTransport) -> None:
    transport().publish(weights_of(version), version, [engine])


def scores_of(version: int, engine: RolloutEngine) -> list[float]:
    """Return the log-probabilities of an engine of the same kind that holds only this version."""
    kind = "fake" if isinstance(engine, FakeEngine) else "inline"
    another = make(kind)
    publish(another, version)
    return np.atleast_2d(another.logprobs(TOKENS))[0].tolist()


def assert_holds(engine: RolloutEngine, version: int) -> None:
    """Check the version, the weights in use, and that requests are answered from them."""
    assert engine.version == version
    for row in np.atleast_2d(engine.logprobs(TOKENS)):
        np.testing.assert_allclose(row, scores_of(version, engine), atol=1e-5)


def raising(action: Callable[..., object], *, after: bool, times: int = 99) -> Callable[..., object]:
    """Return a method whose first calls fail, before they take effect or after."""
    left = iter(range(times))

    def call(*args: object) -> object:
        if next(left, None) is None:
            return action(*args)
        if after:
            action(*args)
        raise OSError("the call failed")

    return call


class TestFailures:
    @pytest.mark.parametrize("transport", [SameHostTransport, FakeTransport])
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("call", ["stage", "pause", "flip", "resume"])
    def test_a_sync_in_which_a_call_fails_leaves_the_version_before(
        self, engine: RolloutEngine, call: str, after: bool, transport: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(engine, call, raising(getattr(engine, call), after=after, times=1))
            with pytest.raises(SyncError, match="version 2 was not published: the call failed"):
                publish(engine, 2, transport)
        assert_holds(engine, 1)
        publish(engine, 2, transport)
        assert_holds(engine, 2)

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_an_unflip_that_fails_once_is_repeated(
        self, engine: RolloutEngine, after: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(engine, "unflip", raising(engine.unflip, after=after, times=1))
            broken.setattr(engine, "flip", raising(engine.flip, after=True))
            with pytest.raises(SyncError, match="version 2 was not published"):
                publish(engine, 2)
        assert_holds(engine, 1)

    @pytest.mark.parametrize("transport", [SameHostTransport, FakeTransport])
    @pytest.mark.parametrize("call", ["stage", "flip"])
    def test_a_publish_inside_another_one_is_refused_and_the_engine_is_not_paused(
        self, engine: RolloutEngine, call: str, transport: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        method = getattr(engine, call)

        def publish_again(*args: object) -> object:
            publish(engine, 3, transport)
            return method(*args)

        with monkeypatch.context() as broken:
            broken.setattr(engine, call, publish_again)
            with pytest.raises(SyncError, match="version 3 was not published: this thread is publishing version 2"):
                publish(engine, 2, transport)
        assert_holds(engine, 1)
        engine.answer([groups(1)[0].prompt])  # this would wait if the engine were paused
        publish(engine, 3, transport)
        with pytest.raises(SyncError, match="already holds version 3"):
            publish(engine, 2, transport)
        assert_holds(engine, 3)

    def test_a_failed_sync_after_another_one_leaves_the_version_before(
        self, engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for version in (2, 3, 4):
            with monkeypatch.context() as broken:
                broken.setattr(engine, "pause", raising(engine.pause, after=False))
                with pytest.raises(SyncError):
                    publish(engine, version)
            assert_holds(engine, 1)

    @pytest.mark.parametrize("name", ["fake", "inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
    def test_requests_are_answered_from_the_old_version_after_a_failed_call(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, queue = make(name), Queue()
        publish(engine, 1)
        engine.start(queue)
        for number, call in enumerate(["stage", "pause", "flip", "resume"]):
            queue.dispatch([attrs.evolve(groups(1)[0], number=2 * number)])  # in flight, or answered before the sync
            with monkeypatch.context() as broken:
                broken.setattr(engine, call, raising(getattr(engine, call), after=True, times=1))
                with pytest.raises(SyncError, match="the call failed"):
                    publish(engine, 2)
            queue.dispatch([attrs.evolve(groups(1)[0], number=2 * number + 1)])
            engine.pump()
            queue.wait_for(2 * number + 2)
        engine.close()
        assert all(reason == "worker_died" for _, reason in queue.failed.values())  # it was too slow to be paused
        queue.finished.pop(6, None)  # in flight while `resume` failed after its effect: may be of the new version
        assert {version for answers in queue.finished.values() for version in versions_of(answers)} == {1}


class TestUnflip:
    def test_staged_weights_are_discarded(self, engine: RolloutEngine) -> None:
        engine.stage(weights_of(2), 2)
        engine.unflip()
        with pytest.raises(SyncError):
            engine.flip()
        assert_holds(engine, 1)

    def test_the_flip_since_the_last_stage_is_undone_once(self, engine: RolloutEngine) -> None:
        publish(engine, 2)
        engine.unflip()
        assert_holds(engine, 1)
        engine.unflip()
        assert_holds(engine, 1)

    def test_unflip_keeps_a_flip_from_before_the_last_stage(self, engine: RolloutEngine) -> None:
        publish(engine, 2)
        engine.stage(weights_of(3), 3)
        engine.unflip()
        engine.unflip()
        assert_holds(engine, 2)

    def test_the_same_version_can_be_staged_again_after_a_failure(self, engine: RolloutEngine) -> None:
        publish(engine, 2)
        engine.unflip()
        engine.stage(weights_of(2), 2)
        engine.unflip()
        assert_holds(engine, 1)
        publish(engine, 2)
        assert_holds(engine, 2)


class TestStage:
    def test_the_weights_in_use_are_unchanged_until_the_flip(self, engine: RolloutEngine) -> None:
        engine.stage(weights_of(2), 2)
        assert_holds(engine, 1)
        engine.flip()
        assert_holds(engine, 2)

    def test_stage_returns_checksums_of_a_copy(self, engine: RolloutEngine) -> None:
        weights = {name: tensor.clone() for name, tensor in weights_of(2).items()}
        held = engine.stage(weights, 2)
        assert held == {name: checksum(tensor) for name, tensor in weights.items()}
        for tensor in weights.values():
            tensor.zero_()
        engine.flip()
        assert_holds(engine, 2)

    def test_buckets_of_one_version_are_joined(self, engine: RolloutEngine) -> None:
        for name, tensor in weights_of(2).items():
            engine.stage({name: tensor}, 2)
        engine.flip()
        assert_holds(engine, 2)

    def test_stage_of_a_newer_version_discards_staged_buckets(self, engine: RolloutEngine) -> None:
        name, tensor = next(iter(weights_of(2).items()))
        engine.stage({name: tensor + 7}, 2)
        for bucket in split(weights_of(3)):
            engine.stage(bucket, 3)
        engine.flip()
        assert_holds(engine, 3)


def split(weights: Weights) -> list[dict[str, Tensor]]:
    return [{name: tensor} for name, tensor in reversed(weights.items())]


@pytest.mark.parametrize("transport", [SameHostTransport, FakeTransport])
def test_a_transport_refuses_an_engine_that_holds_other_bytes(transport: type) -> None:
    class Corrupted(FakeEngine):
        def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
            return {name: value + 1 for name, value in super().stage(weights, version).items()}

    engine = Corrupted()
    with pytest.raises(SyncError, match="does not hold the weights that were sent"):
        publish(engine, 1, transport)
    assert (engine.version, engine.paused) == (-1, False)


class TestFlip:
    def test_flip_without_staged_weights_is_refused(self, engine: RolloutEngine) -> None:
        with pytest.raises(SyncError):
            engine.flip()
        assert_holds(engine, 1)

    def test_second_flip_is_refused_and_the_first_can_be_undone(self, engine: RolloutEngine) -> None:
        engine.stage(weights_of(2), 2)
        engine.flip()
        with pytest.raises(SyncError):
            engine.flip()
        assert_holds(engine, 2)
        engine.unflip()
        assert_holds(engine, 1)


class TestPause:
    def test_resume_without_pause_does_nothing(self, engine: RolloutEngine) -> None:
        engine.resume()
        assert_holds(engine, 1)

    def test_a_paused_engine_scores(self, engine: RolloutEngine) -> None:
        engine.pause()
        assert_holds(engine, 1)
        engine.resume()


def test_an_engine_holds_version_minus_one_before_the_first_publish() -> None:
    for name in ("fake", "inline", "thread"):
        engine = make(name)
        assert engine.version == -1
        engine.unflip()
        engine.resume()
        with pytest.raises(SyncError):
            engine.flip()
        assert engine.version == -1
        publish(engine, 0)
        assert_holds(engine, 0)


def test_close_may_be_repeated_and_may_come_before_start(engine: RolloutEngine) -> None:
    engine.close()
    engine.close()


@pytest.mark.parametrize("name", ["fake", "inline"])
def test_a_closed_engine_generates_nothing(name: str) -> None:
    engine = make(name)
    publish(engine, 0)
    engine.start(queue := Queue(groups(2)))
    engine.close()
    engine.pump()
    assert queue.finished == {}
