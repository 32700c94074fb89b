"""The contract of `CheckpointStore`, kept alike by the store on disk and by the fake one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hooktrainer.checkpoint.background import BackgroundStore
from hooktrainer.checkpoint.codec import encode
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import BestMetric, CheckpointStore, Retention, Snapshot
from hooktrainer.testing import FakeCheckpointStore

SCORE = BestMetric("score")


def snapshot(step: int) -> Snapshot:
    return encode(step, {"learner": {"updates": step}})


@pytest.fixture(params=["fake", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return FakeCheckpointStore() if request.param == "fake" else BackgroundStore(tmp_path)


def save(store: CheckpointStore, *scores: float) -> None:
    """Save the steps 1, 2, ... with these scores."""
    store.open(0, Retention())
    for step, score in enumerate(scores, 1):
        store.save(snapshot(step), {"score": score})
    store.close()


def test_an_empty_store_has_nothing_to_load(store: CheckpointStore) -> None:
    assert store.load("auto") is None
    assert (store.saved_step, store.best_score(SCORE)) == (0, None)


def test_the_newest_checkpoint_is_loaded(store: CheckpointStore) -> None:
    save(store, 0.5, 0.75)
    found = store.load("auto")
    assert found is not None
    assert (found.path.name, found.snapshot.parts) == ("step_00000002", snapshot(2).parts)
    assert store.saved_step == 2


def test_a_checkpoint_is_loaded_by_its_path(store: CheckpointStore) -> None:
    save(store, 0.5, 0.75, 0.25)
    newest = store.load("auto")
    assert newest is not None
    found = store.load(newest.path.with_name("step_00000001"))
    assert found is not None
    assert found.snapshot.step == 1


def test_a_path_without_a_checkpoint_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        store.load(tmp_path / "step_00000007")


def test_the_best_score_is_that_of_the_metrics_mode(store: CheckpointStore) -> None:
    save(store, 0.5, 0.75, 0.25)
    assert store.best_score(SCORE) == 0.75
    assert store.best_score(BestMetric("score", "min")) == 0.25
    assert store.best_score(BestMetric("loss")) is None


def test_checkpoints_after_the_step_of_a_resume_are_not_used_any_more(store: CheckpointStore) -> None:
    save(store, 0.5, 0.25, 0.75)
    store.open(2, Retention())
    found = store.load("auto")
    assert found is not None
    assert (found.snapshot.step, store.saved_step, store.best_score(SCORE)) == (2, 2, 0.5)


def test_close_may_be_repeated(store: CheckpointStore) -> None:
    save(store, 0.5)
    store.close()
    store.raise_error()
