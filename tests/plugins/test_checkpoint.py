"""checkpoint on the fake bus: when it saves, which checkpoints it keeps, and failed or slow saves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from hooktrainer import Plugin, Priority, on, state
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.checkpoint.background import BackgroundStore
from hooktrainer.checkpoint.codec import encode
from hooktrainer.checkpoint.store import Store
from hooktrainer.checkpoint.writer_thread import Writer
from hooktrainer.errors import CheckpointError, PlanError
from hooktrainer.events import FitEnd, FitStart, StepEnd, StepStart
from hooktrainer.ports import Snapshot
from hooktrainer.testing import FakeBus, FakeRunState, check_order_independent, check_plugin
from hooktrainer_plugins.checkpoint import Checkpoint

PATIENCE_S = 30


def started(tmp_path: Path, *, state: FakeRunState | None = None, **options: object) -> tuple[FakeBus, FakeRunState]:
    run = state or FakeRunState(directory=tmp_path)
    run.directory = tmp_path
    bus = FakeBus(Checkpoint(run=run, store=BackgroundStore(tmp_path), **options), provides=["metrics.row"])
    bus.fire(FitStart)
    return bus, run


def steps(tmp_path: Path) -> list[int]:
    return sorted(int(path.name[-8:]) for path in (tmp_path / "checkpoints").glob("step_????????"))


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Checkpoint)


@pytest.mark.parametrize(
    ("option", "wrong"), [("every", 0), ("keep_last", 0), ("keep_last", -2), ("best_mode", "most")]
)
def test_invalid_options_are_refused(option: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=str(wrong)):
        Checkpoint(**{option: wrong})


def test_every_nth_step_and_the_last_step_are_saved(tmp_path: Path) -> None:
    bus, run = started(tmp_path, every=2, keep_last=-1)
    for step in range(1, 6):
        run.state["step"] = step
        bus.fire(StepEnd, step=step, row={}, last=step == 5)
    bus.fire(FitEnd, step=5)

    assert steps(tmp_path) == [2, 4, 5]
    again = FakeRunState(resume="auto")
    started(tmp_path, state=again)
    assert (again.step, again.state) == (5, {"step": 5})


def test_interruption_within_a_step_saves_the_last_complete_step_from_memory(tmp_path: Path) -> None:
    bus, run = started(tmp_path, every=10)
    run.state["step"] = 1
    bus.fire(StepEnd, step=1, row={})
    run.state["step"] = 1.5
    bus.fire(FitEnd, step=1, status="interrupted")

    assert Store(tmp_path / "checkpoints").load_newest().snapshot.parts["state"] == {"step": 1}


def test_without_in_memory_an_interruption_logs_that_the_last_step_is_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, run = started(tmp_path, every=2, in_memory=False)
    for step in (1, 2, 3):
        bus.fire(StepEnd, step=step, row={})
    bus.fire(FitEnd, step=3, status="interrupted")

    assert run.captured == [2]
    assert steps(tmp_path) == [2]
    assert "step 3 is complete but not saved, because in_memory is off" in caplog.text


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_without_in_memory_a_run_that_ends_between_steps_saves_its_last_step(tmp_path: Path, status: str) -> None:
    bus, _ = started(tmp_path, every=2, in_memory=False)
    bus.fire(StepStart, step=1)
    bus.fire(StepEnd, step=1, row={})
    bus.fire(FitEnd, step=1, status=status)

    assert steps(tmp_path) == [1]


def test_without_in_memory_a_step_is_not_saved_after_the_next_step_started(tmp_path: Path) -> None:
    bus, run = started(tmp_path, every=2, in_memory=False)
    for step in (1, 2, 3):
        bus.fire(StepStart, step=step)
        bus.fire(StepEnd, step=step, row={})
    bus.fire(StepStart, step=4)  # here it was stopped, and handlers have begun
    bus.fire(FitEnd, step=3, status="stopped")

    assert run.captured == [2]
    assert steps(tmp_path) == [2]


def test_step_that_failed_before_its_save_is_saved_in_fit_end(tmp_path: Path) -> None:
    bus, run = started(tmp_path, every=10)
    bus.fire(StepEnd, step=1, row={})
    run.state["step"] = 2
    bus.fire(FitEnd, step=2, status="failed", row={})

    assert steps(tmp_path) == [2]


def test_run_without_a_step_saves_nothing(tmp_path: Path) -> None:
    bus, _ = started(tmp_path)
    bus.fire(FitEnd, step=0, status="failed")

    assert not (tmp_path / "checkpoints").exists()


def test_resuming_a_completed_run_changes_no_file(tmp_path: Path) -> None:
    bus, _ = started(tmp_path)
    bus.fire(StepEnd, step=1, row={}, last=True)
    bus.fire(FitEnd, step=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    bus, _ = started(tmp_path, state=FakeRunState(resume="auto"))
    bus.fire(FitEnd, step=1, status="already_done")

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("scores", "keep_last", "expected"),
    [
        ([0.9, 0.5, 0.6], 2, [1, 2, 3]),
        ([0.9, 0.5, 0.6], 1, [1, 3]),
        ([None, None, None], 1, [3]),
        ([float("nan"), 0.5, 0.4], 1, [2, 3]),
    ],
)
def test_keep_best_keeps_the_best_checkpoint_in_addition_to_keep_last(
    tmp_path: Path, scores: list[float | None], keep_last: int, expected: list[int]
) -> None:
    bus, _ = started(tmp_path, every=1, keep_last=keep_last, keep_best="val/score/mean")
    for step, score in enumerate(scores, start=1):
        bus.fire(StepEnd, step=step, row={} if score is None else {"val/score/mean": score})
    bus.fire(FitEnd, step=3)

    assert steps(tmp_path) == expected


def test_keep_best_saves_a_best_step_between_scheduled_saves(tmp_path: Path) -> None:
    bus, _ = started(tmp_path, every=3, keep_last=1, keep_best="val/score/mean")
    for step in range(1, 8):  # saved every 3 steps, validated every 2
        bus.fire(StepEnd, step=step, row={"val/score/mean": [0.1, 0.9, 0.2][step // 2 - 1]} if step % 2 == 0 else {})
    bus.fire(FitEnd, step=7)

    assert steps(tmp_path) == [4, 7]
    best = Store(tmp_path / "checkpoints").read(tmp_path / "checkpoints" / "step_00000004")
    assert best.step == 4


def test_keep_best_compares_with_the_best_step_from_before_a_resume(tmp_path: Path) -> None:
    bus, _ = started(tmp_path, every=1, keep_last=1, keep_best="score")
    bus.fire(StepEnd, step=1, row={"score": 0.9})
    bus.fire(StepEnd, step=2, row={"score": 0.5})
    bus.fire(FitEnd, step=2)

    bus, _ = started(tmp_path, state=FakeRunState(resume="auto"), every=10, keep_last=1, keep_best="score")
    bus.fire(StepEnd, step=3, row={"score": 0.6})
    bus.fire(StepEnd, step=4, row={})
    bus.fire(FitEnd, step=4)

    assert steps(tmp_path) == [1, 4]


class Generators(FakeRunState):
    """Records the state of the generators in every capture."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, generators={"drawn": 3})
        self.saved: list[object] = []

    def capture(self, step: int) -> Snapshot:
        self.saved.append(dict(self.generators))
        return super().capture(step)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the generators, as the trainer does around EVALUATE."""
        before = self.random()
        try:
            yield
        finally:
            self.set_random(before)


@attrs.define
class Evaluates(Plugin):
    """Draws random numbers in EVALUATE, and may fail."""

    run: Generators
    fails: bool = False

    @on(StepEnd, priority=Priority.EVALUATE)
    def evaluate(self, event: StepEnd) -> None:
        self.run.generators["drawn"] = 7
        if self.fails:
            raise ValueError("broken")


def test_evaluation_does_not_change_the_saved_random_state(tmp_path: Path) -> None:
    run = Generators(tmp_path)
    bus = FakeBus(Checkpoint(run=run, store=BackgroundStore(tmp_path)), Evaluates(run), provides=["metrics.row"])
    bus.bus.around(StepEnd, Priority.EVALUATE, run.preserved)
    bus.fire(FitStart)

    bus.fire(StepEnd, step=1)

    assert run.generators == {"drawn": 3}
    assert run.saved[-1] == {"drawn": 3}


def test_failed_evaluation_does_not_change_the_saved_random_state(tmp_path: Path) -> None:
    run = Generators(tmp_path)
    bus = FakeBus(
        Checkpoint(run=run, store=BackgroundStore(tmp_path)), Evaluates(run, fails=True), provides=["metrics.row"]
    )
    bus.bus.around(StepEnd, Priority.EVALUATE, run.preserved)
    bus.fire(FitStart)
    with pytest.raises(ValueError, match="broken"):
        bus.fire(StepEnd, step=1)
    bus.fire(FitEnd, step=1, status="failed", row={})

    assert steps(tmp_path) == [1]
    assert run.saved[-1] == {"drawn": 3}


KEEPS_NOTHING = "keep_best has no effect: no row so far has the metric 'val/scor/mean'. Did you mean 'val/score/mean'?"


def test_missing_validation_metric_of_keep_best_is_logged_at_the_first_validation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = started(tmp_path, keep_best="val/scor/mean")
    bus.fire(StepEnd, step=1, row={"actor/pg_loss": 1.0})
    assert not caplog.records
    for step in (2, 3):
        bus.fire(StepEnd, step=step, row={"val/score/mean": 1.0})
        assert [record.getMessage() for record in caplog.records] == [KEEPS_NOTHING]
    bus.fire(FitEnd, step=3)
    assert len(caplog.records) == 1


def test_missing_metric_of_keep_best_is_logged_at_the_end_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = started(tmp_path, keep_best="score")
    bus.fire(StepEnd, step=1, row={"scores": 1.0})
    bus.fire(StepEnd, step=2, row={"loss": 1.0})
    assert not caplog.records
    bus.fire(FitEnd, step=2)
    assert [record.getMessage() for record in caplog.records] == [
        "keep_best has no effect: no row so far has the metric 'score'. Did you mean 'scores'?"
    ]


def test_metric_of_keep_best_may_be_absent_in_some_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus, _ = started(tmp_path, keep_best="score")
    for step, row in enumerate([{"loss": 1.0}, {"score": 1.0}, {"loss": 1.0}], start=1):
        bus.fire(StepEnd, step=step, row=row)
    bus.fire(FitEnd, step=3)
    assert not caplog.records


class Disk:
    """A fake disk that is full, or slow until `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.go_on = threading.Event()
        self.go_on.set()
        self.writing = threading.Event()
        real = Store.save

        def save(store: Store, *arguments: object, **options: object) -> Path:
            self.writing.set()
            assert self.go_on.wait(PATIENCE_S)
            if self.full:
                raise CheckpointError("the disk is full")
            return real(store, *arguments, **options)

        monkeypatch.setattr(Store, "save", save)


def test_background_save_error_is_raised_in_the_next_step_and_fit_end_saves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    bus, _ = started(tmp_path, every=1, keep_last=1)
    bus.fire(StepEnd, step=1, row={})
    wait_for_idle(bus)
    disk.full = True
    bus.fire(StepEnd, step=2, row={})
    wait_for_idle(bus)

    with pytest.raises(CheckpointError, match="the disk is full"):
        bus.fire(StepEnd, step=3, row={})
    assert steps(tmp_path) == [1]
    disk.full = False
    bus.fire(FitEnd, step=3, status="failed", row={})

    assert steps(tmp_path) == [3]


@pytest.mark.parametrize(("status", "saved"), [("interrupted", [1, 3]), ("stopped", [1, 2, 3])])
def test_interruption_skips_queued_saves_and_waits_for_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, saved: list[int]
) -> None:
    disk = Disk(monkeypatch)
    bus, _ = started(tmp_path, every=1, keep_last=-1)
    disk.go_on.clear()
    bus.fire(StepEnd, step=1, row={})
    assert disk.writing.wait(PATIENCE_S)
    bus.fire(StepEnd, step=2, row={})  # waits for the first
    run = bus.plan.plugins[-1].plugin.run
    run.capture(3)
    real = Writer.close

    def close(writer: Writer, timeout_s: float | None = None) -> None:
        disk.go_on.set()
        real(writer, timeout_s)

    monkeypatch.setattr(Writer, "close", close)
    bus.fire(FitEnd, step=3, status=status)

    assert steps(tmp_path) == saved


def test_interrupted_run_abandons_a_save_on_a_hanging_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    bus, _ = started(tmp_path, every=1, patience_s=0.1)
    disk.go_on.clear()
    bus.fire(StepEnd, step=1, row={})
    with pytest.raises(CheckpointError, match="checkpoint of step 1 was abandoned after 0.1"):
        bus.fire(FitEnd, step=1, status="interrupted")

    late = writer_of(bus)._thread
    disk.go_on.set()
    late.join(PATIENCE_S)
    assert steps(tmp_path) == []


def writer_of(bus: FakeBus) -> Writer:
    (plugin,) = [entry.plugin for entry in bus.plan.plugins if isinstance(entry.plugin, Checkpoint)]
    return plugin.store._writer


def wait_for_idle(bus: FakeBus) -> None:
    writer = writer_of(bus)
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer._queued is None and writer._writing is None, PATIENCE_S)


def test_save_that_fails_in_fit_end_is_raised_with_both_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    bus, _ = started(tmp_path, every=1)
    disk.full = True
    bus.fire(StepEnd, step=1, row={})

    with pytest.raises(CheckpointError, match="the disk is full") as caught:
        bus.fire(FitEnd, step=1)
    assert any("failed as well: the disk is full" in note for note in caught.value.__notes__)
    assert writer_of(bus)._thread is None


def test_checkpoint_written_in_the_background_is_unaffected_by_later_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    bus, run = started(tmp_path, every=1, keep_last=-1)
    disk.go_on.clear()
    for step in (1, 2):  # one is being written, one waits
        run.state["values"] = [step]
        bus.fire(StepEnd, step=step, row={})
        assert disk.writing.wait(PATIENCE_S)
    run.state["values"].append("changed since")
    disk.go_on.set()
    bus.fire(FitEnd, step=2)

    store = Store(tmp_path / "checkpoints")
    for step in (1, 2):
        assert store.read(store.root / f"step_0000000{step}").parts["state"]["values"] == [step]


def test_submit_blocks_on_a_slow_disk_and_saves_are_written_in_order() -> None:
    written: list[int] = []
    go_on = threading.Semaphore(0)

    def write(snapshot: Snapshot, _: object) -> None:
        go_on.acquire()
        written.append(snapshot.step)

    writer = Writer(write)
    writer.submit(encode(1, {}), {})
    writer.submit(encode(2, {}), {})
    third = threading.Thread(target=writer.submit, args=(encode(3, {}), {}))
    third.start()
    third.join(0.2)
    assert third.is_alive()  # one is being written, one waits

    for _ in range(3):
        go_on.release()
    third.join(PATIENCE_S)
    writer.close()
    assert written == [1, 2, 3]


def test_missing_run_directory_is_an_error() -> None:
    bus = FakeBus(Checkpoint(run=FakeRunState(), store=BackgroundStore(None)), provides=["metrics.row"])
    with pytest.raises(CheckpointError, match="no run directory"):
        bus.fire(FitStart)


def test_no_checkpoint_is_published_after_the_final_save_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    bus, _ = started(tmp_path, every=1)
    disk.go_on.clear()
    bus.fire(StepEnd, step=1, row={})
    assert disk.writing.wait(PATIENCE_S)

    def interrupted(writer: Writer, timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bus.fire(FitEnd, step=1, status="interrupted")
    disk.go_on.set()
    wait_for_idle(bus)
    with pytest.raises(CheckpointError):  # the interrupted save
        writer_of(bus).close()

    assert steps(tmp_path) == []


@attrs.define
class Late(Plugin):
    """Changes its state after all other handlers."""

    seen: int = state(0)

    @on(StepEnd, priority=Priority.CLEANUP)
    def count(self, event: StepEnd) -> None:
        self.seen += 1


def test_plan_refuses_a_plugin_that_changes_its_state_after_the_save() -> None:
    with pytest.raises(PlanError, match=r"late.count .* runs after checkpoint.save .* a priority below 799") as caught:
        FakeBus(Late(), Checkpoint(), provides=["metrics.row"])
    assert caught.value.faults[0].address == "plugins[0]"

    FakeBus(PlacedPlugin(Late(), "late", "plugins[0]", {"step_end": 650}), Checkpoint(), provides=["metrics.row"])
    FakeBus(Late(), PlacedPlugin(Checkpoint(), "checkpoint", "plugins[1]", {"save": 900}), provides=["metrics.row"])


def test_plan_does_not_depend_on_the_order_of_the_plugin_list() -> None:
    check_order_independent(["metric_aggregation", "weight_sync", "log_after_collect", "checkpoint"])
