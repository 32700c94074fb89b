"""The training loop: steps, the rows of their metrics, and the ends of runs."""

from __future__ import annotations

import gc
import itertools
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from hooktrainer import Plugin, Priority, Trainer, on
from hooktrainer._util.random_state import set_random_state
from hooktrainer.checkpoint.codec import decode
from hooktrainer.checkpoint.run_state import RunPlace
from hooktrainer.checkpoint.store import load
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import BusError, ConfigError, MetricError, RolloutError, StarvedError, SyncError
from hooktrainer.events import (
    EVENTS,
    Event,
    FitEnd,
    FitStart,
    IterationEnd,
    IterationStart,
    StepEnd,
    StepStart,
    WeightsSynced,
)
from hooktrainer.metrics import Last, Mean, Sum
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.testing import (
    FakeBuffer,
    FakeEngine,
    FakeLearner,
    FakePrompts,
    FakeSink,
    FakeTransport,
    ManualClock,
    fake_ports,
)
from hooktrainer_plugins.checkpoint import Checkpoint
from hooktrainer_plugins.log_after_collect import LogAfterCollect
from hooktrainer_plugins.metric_aggregation import MetricAggregation
from hooktrainer_plugins.staleness import Staleness
from hooktrainer_plugins.validation import Validation
from hooktrainer_plugins.weight_sync import WeightSync


@attrs.define
class Witness(Plugin):
    """Records every event, and calls an action for its type."""

    seen: list[Event] = attrs.field(factory=list)
    acts: Mapping[type[Event], Callable[[Event], None]] = attrs.field(factory=dict)

    def _see(self, event: Event) -> None:
        self.seen.append(event)
        self.acts.get(type(event), lambda _: None)(event)

    @on(FitStart)
    def a(self, event: FitStart) -> None:
        self._see(event)

    @on(StepStart)
    def b(self, event: StepStart) -> None:
        self._see(event)

    @on(IterationStart)
    def c(self, event: IterationStart) -> None:
        self._see(event)

    @on(IterationEnd)
    def d(self, event: IterationEnd) -> None:
        self._see(event)

    @on(StepEnd)
    def e(self, event: StepEnd) -> None:
        self._see(event)

    @on(WeightsSynced)
    def f(self, event: WeightsSynced) -> None:
        self._see(event)

    @on(FitEnd)
    def g(self, event: FitEnd) -> None:
        self._see(event)

    def count(self, kind: type[Event]) -> int:
        return sum(type(event) is kind for event in self.seen)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.seen if type(event) is kind]


@attrs.define
class Run:
    """A run on fakes, with access to its parts."""

    config: TrainerConfig
    extra: Sequence[Plugin] = ()
    plugins: Sequence[Plugin] | None = None
    ports: Mapping[str, object] = attrs.field(factory=dict)
    sink: FakeSink = attrs.field(factory=FakeSink)
    witness: Witness = attrs.field(factory=Witness)
    learner: FakeLearner = attrs.field(factory=lambda: FakeLearner(lambda update: {"loss": float(update)}))
    directory: Path | None = None

    def trainer(self) -> Trainer:
        standard = [MetricAggregation(), WeightSync(), LogAfterCollect(sinks=[self.sink]), self.witness]
        plugins = [*(self.plugins if self.plugins is not None else standard), *self.extra]
        ports = fake_ports(**{"learner": self.learner, **self.ports})
        return Trainer(plugins, ports, self.config, RunPlace(directory=self.directory))

    def fit(self) -> object:
        return self.trainer().fit()


def cycles(
    parameter_sync_step: int = 4, total_steps: int | None = None, mini_batch: int = 1, warmup: int = 0
) -> TrainerConfig:
    return TrainerConfig(
        total_steps=total_steps,
        train_batch_size=parameter_sync_step * mini_batch,
        ppo_mini_batch_size=mini_batch,
        parameter_sync_step=parameter_sync_step,
        num_warmup_batches=warmup,
    )


class TestSteps:
    def test_row_is_the_mean_of_its_iterations_in_every_plugin_order(self) -> None:
        kinds = [MetricAggregation, WeightSync, Staleness, Validation, LogAfterCollect]
        for order in itertools.permutations(kinds):
            sink = FakeSink()
            plugins = [make(sinks=[sink]) if make is LogAfterCollect else make() for make in order]
            Run(cycles(4, total_steps=2), plugins=plugins).fit()

            assert sink.column("loss") == [(1, 2.5), (2, 6.5)]

    def test_step_has_parameter_sync_step_updates_and_one_sync(self) -> None:
        updates_at_sync: list[int] = []
        run = Run(cycles(4, total_steps=3))
        run.witness.acts = {WeightsSynced: lambda _: updates_at_sync.append(run.learner.updates)}

        run.fit()

        assert [run.witness.count(kind) for kind in (IterationEnd, StepEnd, WeightsSynced)] == [12, 3, 3]
        assert updates_at_sync == [4, 8, 12]

    def test_data_that_ends_before_the_total_steps_names_the_option_that_repeats_it(self) -> None:
        result = Run(cycles(4, total_steps=5), ports={"prompts": FakePrompts(10)}).fit()

        ended = "the data has ended before step 5; trainer.total_epochs repeats it"
        assert (result.status, result.reason, result.step) == ("completed", ended, 3)

    def test_data_that_ends_within_a_step_completes_the_step(self) -> None:
        run = Run(cycles(4), ports={"prompts": FakePrompts(10)})

        result = run.fit()

        assert run.sink.column("loss") == [(1, 2.5), (2, 6.5), (3, 9.5)]
        assert run.sink.column("training/partial_iterations") == [(3, 2.0)]
        assert run.witness.count(WeightsSynced) == 3
        assert run.witness.of(StepEnd)[-1].last
        assert (result.status, result.reason, result.step) == ("completed", "the data has ended", 3)
        assert run.sink.state == "closed"

    def test_data_that_ends_with_a_step_starts_no_empty_step(self) -> None:
        run = Run(cycles(4), ports={"prompts": FakePrompts(8)})

        run.fit()

        assert run.witness.count(StepStart) == 2
        assert [event.last for event in run.witness.of(StepEnd)] == [False, True]

    def test_only_the_last_mini_batch_is_short_and_weighs_less(self) -> None:
        run = Run(cycles(2, mini_batch=2), ports={"prompts": FakePrompts(7)})

        run.fit()

        assert [len(batch) for batch in run.learner.batches] == [2, 2, 2, 1]
        assert run.sink.column("loss") == [(1, 1.5), (2, (3 * 2 + 4 * 1) / 3)]

    def test_events_of_a_run_follow_the_documented_order(self) -> None:
        run = Run(cycles(2, total_steps=2))

        run.fit()

        step = [StepStart, IterationStart, IterationEnd, IterationStart, IterationEnd, StepEnd, WeightsSynced]
        assert [type(event) for event in run.witness.seen] == [FitStart, *step, *step, FitEnd]
        assert {type(event) for event in run.witness.seen} == set(EVENTS)

    def test_steps_count_from_one_and_engines_hold_the_version_before(self) -> None:
        run = Run(cycles(2, total_steps=2), ports={"engine": (engine := FakeEngine())})
        held: list[tuple[int, int]] = []
        run.witness.acts = {
            StepEnd: lambda event: held.append((event.version, engine.version)),
            WeightsSynced: lambda event: held.append((event.version, engine.version)),
        }

        run.fit()

        assert [(event.step, event.version) for event in run.witness.of(StepStart)] == [(1, 0), (2, 1)]
        assert held == [(0, 0), (1, 1), (1, 1), (2, 2)]

    def test_sync_time_is_in_the_row_of_its_own_step(self) -> None:
        clock = ManualClock()
        transport = FakeTransport(before_publish=clock.advance)
        run = Run(cycles(1, total_steps=3), ports={"clock": clock, "transport": transport})

        run.fit()

        assert run.sink.column("timing_s/weight_sync") == [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert run.sink.column("timing_s/step") == [(1, 1.0), (2, 2.0), (3, 3.0)]

    def test_metrics_of_several_plugins_are_in_one_row(self) -> None:
        @attrs.define
        class Timing(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE, adds=["metrics.row"])
            def add(self, event: StepEnd) -> None:
                event.record.add({"timing_s/mine": Sum(event.step)})

        run = Run(cycles(1, total_steps=3), extra=[Timing(), Validation(every=1)])

        run.fit()

        assert [step for step, _ in run.sink.rows] == [1, 2, 3]
        assert all({"loss", "timing_s/mine", "val/score/mean"} <= row.keys() for _, row in run.sink.rows)

    def test_validation_runs_every_n_steps_and_in_the_last(self) -> None:
        run = Run(cycles(1, total_steps=5), extra=[Validation(every=2)])

        run.fit()

        assert [step for step, _ in run.sink.column("val/score/mean")] == [2, 4, 5]

    def test_syncs_do_not_depend_on_optional_plugins(self) -> None:
        for left_out in (Staleness, Validation, None):
            engine = FakeEngine()
            extra = [kind() for kind in (Staleness, Validation) if kind is not left_out]
            run = Run(cycles(2, total_steps=3), extra=extra, ports={"engine": engine})

            run.fit()

            assert run.witness.count(WeightsSynced) == 3
            assert engine.held == {"updates": 6}


class TestStaleness:
    @pytest.mark.parametrize(("warmup", "expected"), [(0, [1, 1, 1, 1]), (1, [2, 1, 1, 1]), (4, [2, 2, 2, 2])])
    def test_staleness_follows_from_num_warmup_batches(self, warmup: int, expected: list[int]) -> None:
        run = Run(cycles(4, total_steps=3, mini_batch=2, warmup=warmup), extra=[Staleness()])

        run.fit()

        staleness = [event.groups for event in run.witness.of(IterationEnd)]
        assert staleness[:4] == [(1, 1)] * 4
        assert staleness[4:8] == staleness[8:] == [(s, s) for s in expected]

    def test_evicted_groups_are_replaced_and_counted_once(self) -> None:
        run = Run(cycles(1, total_steps=3, warmup=1), extra=[Staleness(max_off_policy_threshold=1)])

        run.fit()

        assert run.sink.column("training/off_policy/evicted_samples") == [(1, 0.0), (2, 1.0), (3, 1.0)]
        assert run.sink.column("training/off_policy/staleness/max") == [(1, 1.0), (2, 1.0), (3, 1.0)]

    def test_free_capacity_is_filled_before_the_update(self) -> None:
        seen: list[int] = []
        buffer = FakeBuffer(ReplayOptions(capacity=2))

        class Learner(FakeLearner):
            def update(self, groups: Sequence[object]) -> Mapping[str, object]:
                seen.append(int(buffer.take_metrics()["replay/pending"].value))
                return super().update(groups)

        Run(cycles(1, total_steps=2, mini_batch=2, warmup=1), ports={"buffer": buffer}, learner=Learner()).fit()

        assert seen == [2, 2]

    def test_start_step_is_called_before_the_first_update_of_each_step(self) -> None:
        seen: list[list[int]] = []

        class Learner(FakeLearner):
            def update(self, groups: Sequence[object]) -> Mapping[str, object]:
                seen.append(list(self.steps))
                return super().update(groups)

        Run(cycles(2, total_steps=2), learner=Learner()).fit()

        assert seen == [[1], [1], [1, 2], [1, 2]]

    def test_a_buffer_without_room_is_filled_after_the_next_sample(self) -> None:
        run = Run(
            cycles(2, total_steps=2, mini_batch=2, warmup=4), ports={"buffer": FakeBuffer(ReplayOptions(capacity=3))}
        )

        run.fit()

        assert [len(batch) for batch in run.learner.batches] == [2, 2, 2, 2]
        numbers = [group.number for batch in run.learner.batches for group in batch]
        assert numbers == list(range(8))


class TestStop:
    def test_stop_after_two_of_four_iterations_completes_the_step(self) -> None:
        run = Run(cycles(4, total_steps=5), extra=[Validation(every=100)])
        run.witness.acts = {
            IterationEnd: lambda event: (
                event.control.stop("enough") if event.step == 2 and event.iteration == 1 else None
            )
        }

        result = run.fit()

        assert run.sink.column("training/partial_iterations") == [(2, 2.0)]
        assert run.sink.column("loss") == [(1, 2.5), (2, 5.5)]
        assert [step for step, _ in run.sink.column("val/score/mean")] == [2]
        assert (result.status, result.reason, result.step) == ("stopped", "enough", 2)

    @pytest.mark.parametrize("kind", [FitStart, StepStart, IterationStart])
    def test_stop_before_the_first_update_creates_no_row(self, kind: type[Event]) -> None:
        run = Run(cycles(4, total_steps=5))
        run.witness.acts = {kind: lambda event: event.control.stop("enough")}

        result = run.fit()

        assert (result.status, result.step, run.sink.rows) == ("stopped", 0, [])
        assert run.witness.count(StepEnd) == 0
        assert run.witness.count(FitEnd) == 1

    def test_stop_during_step_end_ends_the_run_after_the_step(self) -> None:
        run = Run(cycles(1, total_steps=5))
        run.witness.acts = {WeightsSynced: lambda event: event.control.stop("enough")}

        assert run.fit().step == 1

    def test_run_stopped_in_its_last_step_is_completed(self) -> None:
        run = Run(cycles(1, total_steps=1))
        run.witness.acts = {IterationEnd: lambda event: event.control.stop("enough")}

        assert run.fit().status == "completed"


def raising(error: BaseException) -> Callable[[Event], None]:
    def act(_: Event) -> None:
        raise error

    return act


def draws() -> tuple[float, float, float]:
    """Draw one number from each global generator."""
    return random.random(), float(np.random.random()), float(torch.rand(1))  # noqa: NPY002


def seed_all() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)


@attrs.define
class Draws(Plugin):
    """Reports a number of each global generator in every step."""

    @on(StepStart, adds=["metrics.row"])
    def draw(self, event: StepStart) -> None:
        names = ("python", "numpy", "torch")
        event.record.add({f"draws/{name}": Last(number) for name, number in zip(names, draws(), strict=True)})


@attrs.define
class DrawsAtTheEnd(Plugin):
    """Draws from all global generators before the last checkpoint is saved."""

    @on(FitEnd, priority=Priority.PREPARE)
    def draw(self, event: FitEnd) -> None:
        draws()


@attrs.define
class Drawn(Event):
    """Sent after an evaluation drew random numbers."""


@attrs.define
class Evaluates(Plugin):
    """Draws random numbers in EVALUATE and in a custom event."""

    fails_at: int = 0
    seen: list[tuple[float, float, float]] = attrs.field(factory=list)

    @on(StepEnd, priority=Priority.EVALUATE, emits=[Drawn], every=2)
    def evaluate(self, event: StepEnd) -> None:
        self.seen.append(draws())
        event.control.emit(Drawn())
        if event.step == self.fails_at:
            raise ValueError("broken")

    @on(Drawn)
    def draw_again(self, event: Drawn) -> None:
        self.seen.append(draws())


class TestEvaluation:
    def rows(self, *extra: Plugin, directory: Path | None = None) -> list[Mapping[str, float]]:
        run = Run(cycles(1, total_steps=5), extra=[Draws(), *extra], directory=directory)
        seed_all()
        run.fit()
        return [
            {key: value for key, value in row.items() if not key.startswith(("timing", "perf/"))}
            for _, row in run.sink.rows
        ]

    @pytest.mark.parametrize("checkpoint", [False, True], ids=["without checkpoints", "with checkpoints"])
    def test_evaluation_does_not_change_the_random_state_of_the_run(self, tmp_path: Path, checkpoint: bool) -> None:
        evaluation = Evaluates()
        alone = self.rows()

        rows = self.rows(evaluation, *([Checkpoint(every=2)] if checkpoint else []), directory=tmp_path)

        assert rows == alone
        assert len({row["draws/python"] for row in rows}) == 5
        assert len(evaluation.seen) == 2 * 3

    def test_evaluation_draws_the_same_with_and_without_checkpoints(self, tmp_path: Path) -> None:
        with_checkpoints, without = Evaluates(), Evaluates()
        self.rows(with_checkpoints, Checkpoint(every=2), directory=tmp_path)
        self.rows(without)

        assert with_checkpoints.seen == without.seen

    @pytest.mark.parametrize("checkpoint", [False, True], ids=["without checkpoints", "with checkpoints"])
    def test_failed_evaluation_does_not_change_the_random_state_of_the_run(
        self, tmp_path: Path, checkpoint: bool
    ) -> None:
        run = Run(cycles(1, total_steps=5), extra=[Evaluates(fails_at=2)], directory=tmp_path)
        run.extra = [*run.extra, *([Checkpoint()] if checkpoint else [])]
        seed_all()
        expected = draws()
        seed_all()

        with pytest.raises(ValueError, match="broken"):
            run.fit()

        assert draws() == expected

    def test_random_draws_in_fit_end_do_not_change_the_final_checkpoint(self, tmp_path: Path) -> None:
        extra = [Evaluates(fails_at=2), DrawsAtTheEnd(), Checkpoint(every=1)]
        run = Run(cycles(1, total_steps=5), extra=extra, directory=tmp_path)
        seed_all()
        with pytest.raises(ValueError, match="broken"):
            run.fit()
        seed_all()
        expected = draws()

        set_random_state(decode(load(tmp_path / "checkpoints" / "step_00000002").snapshot, "random"))

        assert draws() == expected


class TestFailures:
    def test_fit_raises_the_original_error_after_fit_end(self) -> None:
        error = ValueError("boom")
        run = Run(cycles(1, total_steps=5), ports={"engine": (engine := FakeEngine())})
        run.witness.acts = {IterationEnd: raising(error), FitEnd: raising(KeyError("second"))}

        with pytest.raises(ValueError, match="boom") as caught:
            run.fit()

        assert caught.value is error
        assert (
            error.__notes__[0]
            == "raised by plugin 'witness' (plugins[3]): Witness.d on iteration_end, COLLECT 200, step 1"
        )
        assert error.__notes__[1].startswith("at the end of the run there was another error:\nTraceback")
        assert error.__notes__[1].endswith(
            "raised by plugin 'witness' (plugins[3]): Witness.g on fit_end, COLLECT 200, step 0"
        )
        assert [(event.status, event.reason) for event in run.witness.of(FitEnd)] == [("failed", "ValueError: boom")]
        assert run.sink.state == "closed"
        assert engine.calls[-1] == "close"

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
    def test_interrupt_ends_the_run_like_an_error(self, error: BaseException) -> None:
        run = Run(cycles(1, total_steps=5))
        run.witness.acts = {StepStart: raising(error)}

        with pytest.raises(type(error)):
            run.fit()

        assert [event.status for event in run.witness.of(FitEnd)] == ["interrupted"]

    def test_every_component_is_closed_if_others_fail(self) -> None:
        class Engine(FakeEngine):
            def close(self) -> None:
                super().close()
                raise OSError("a worker hangs")

        class Buffer(FakeBuffer):
            def close(self) -> None:
                super().close()
                raise OSError("the buffer too")

        error, engine = ValueError("boom"), Engine()
        run = Run(cycles(1, total_steps=5), ports={"engine": engine, "buffer": Buffer()})
        run.witness.acts = {StepStart: raising(error)}

        with pytest.raises(ValueError, match="boom") as caught:
            run.fit()

        assert caught.value is error
        assert engine.calls[-1] == "close"
        assert ["the buffer too" in note for note in error.__notes__] == [False, True, False]
        assert "a worker hangs" in error.__notes__[2]

    def test_interrupt_at_any_time_still_sends_fit_end(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        def start_timer(seconds: float, *_: object) -> None:
            signal.setitimer(signal.ITIMER_REAL, seconds)

        before = signal.signal(signal.SIGALRM, interrupt)
        gc.disable()  # an error inside a callback of the collector would be lost
        try:
            for delay in range(40):
                run = Run(cycles(4, total_steps=1000))
                # The timer starts with the run: on a busy machine it would otherwise fire before.
                seconds = 0.000_2 + delay * 0.000_37
                run.witness.acts = {FitStart: partial(start_timer, seconds)}
                trainer = run.trainer()
                with pytest.raises(KeyboardInterrupt):
                    trainer.fit()
                assert run.witness.count(FitEnd) == 1
                assert run.sink.state == "closed"
                steps = [step for step, _ in run.sink.rows]
                assert steps == list(range(1, run.witness.of(FitEnd)[0].step + 1))
        finally:
            gc.enable()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_error_in_fit_end_is_raised_by_fit(self) -> None:
        run = Run(cycles(1, total_steps=1))
        run.witness.acts = {FitEnd: raising(ValueError("boom"))}

        with pytest.raises(ValueError, match="boom"):
            run.fit()

        assert run.sink.state == "closed"

    def test_step_that_fails_before_its_sync_is_discarded(self) -> None:
        run = Run(cycles(2, total_steps=5), ports={"transport": FakeTransport([None, None, ValueError("lost")])})

        with pytest.raises(ValueError, match="lost"):
            run.fit()

        assert run.sink.column("loss") == [(1, 1.5)]
        assert [(event.step, event.version) for event in run.witness.of(FitEnd)] == [(1, 1)]
        assert run.witness.count(WeightsSynced) == 1

    def test_step_that_fails_after_its_sync_is_kept_and_marked_unscored(self) -> None:
        @attrs.define
        class Judge(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE)
            def judge(self, event: StepEnd) -> None:
                if event.step == 2:
                    raise ValueError("no score")

        run = Run(cycles(2, total_steps=5), extra=[Judge()])

        with pytest.raises(ValueError, match="no score"):
            run.fit()

        assert run.sink.column("loss") == [(1, 1.5), (2, 3.5)]
        assert run.sink.column("training/unscored") == [(2, 1.0)]
        assert [event.step for event in run.witness.of(FitEnd)] == [2]

    def test_a_row_that_was_written_is_not_written_again(self) -> None:
        @attrs.define
        class Saver(Plugin):
            @on(StepEnd, priority=Priority.SAVE)
            def save(self, event: StepEnd) -> None:
                raise OSError("disk full")

        run = Run(cycles(1, total_steps=5), extra=[Saver()])

        with pytest.raises(OSError, match="disk full"):
            run.fit()

        assert run.sink.column("loss") == [(1, 1.0)]
        assert run.sink.column("training/unscored") == []

    def test_rollout_error_is_raised_by_fit_with_its_cause(self) -> None:
        error = ValueError("boom")
        run = Run(cycles(4), ports={"engine": FakeEngine(fails=lambda group: error if group.number == 2 else None)})

        with pytest.raises(RolloutError, match="group 2") as caught:
            run.fit()

        assert caught.value.__cause__ is error

    def test_buffer_that_stays_empty_raises_starved_error(self) -> None:
        class Loses(FakeBuffer):
            def dispatch(self, prompts: object, groups_per_step: int | None = None) -> int:
                """Lose everything."""
                return 0

        with pytest.raises(StarvedError, match="step 1: 0 of 1 groups, nothing is pending or running"):
            Run(cycles(1), ports={"buffer": Loses()}).fit()


class TestSync:
    def test_run_without_weight_sync_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="Found none. Add weight_sync"):
            Run(cycles(), plugins=[MetricAggregation()]).trainer()

    def test_any_plugin_may_sync_the_weights(self) -> None:
        engine = FakeEngine()

        @attrs.define
        class Mine(Plugin):
            @on(FitStart)
            def first(self, event: FitStart) -> None:
                engine.stage({}, 0)
                engine.flip()

            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                engine.stage({}, event.step)
                engine.flip()
                event.control.emit(WeightsSynced(step=event.step, version=event.step))

        run = Run(cycles(1, total_steps=2), plugins=[Mine()], ports={"engine": engine})

        assert run.fit().step == 2

    def test_weights_synced_without_the_version_on_the_engine_is_an_error(self) -> None:
        @attrs.define
        class Liar(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                event.control.emit(WeightsSynced(step=event.step, version=event.step))

        engine = FakeEngine()
        engine.stage({}, 0)
        engine.flip()
        run = Run(cycles(1), plugins=[Liar(), (witness := Witness())], ports={"engine": engine})

        with pytest.raises(SyncError, match="the engine holds version 0"):
            run.fit()

        assert witness.count(WeightsSynced) == 0
        assert witness.of(FitEnd)[0].step == 0

    def test_weights_synced_emitted_twice_is_an_error(self) -> None:
        engine = FakeEngine()

        @attrs.define
        class Twice(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                engine.stage({}, event.step)
                engine.flip()
                for _ in range(2):
                    event.control.emit(WeightsSynced(step=event.step, version=event.step))

        engine.stage({}, 0)
        engine.flip()
        with pytest.raises(SyncError, match="emitted twice in step 1"):
            Run(cycles(1), plugins=[Twice()], ports={"engine": engine}).fit()

    def test_step_without_weights_synced_is_an_error(self) -> None:
        trainer = Run(cycles(1, total_steps=2)).trainer()

        with trainer.bus.signal(StepEnd).muted(), pytest.raises(SyncError, match="step 1 ended, but its weights"):
            trainer.fit()

    def test_sync_handler_that_emits_no_weights_synced_is_an_error(self) -> None:
        @attrs.define
        class Mute(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None: ...

        engine = FakeEngine()
        engine.stage({}, 0)
        engine.flip()
        with pytest.raises(BusError, match="mute.sync .* ended without emitting weights_synced"):
            Run(cycles(1), plugins=[Mute()], ports={"engine": engine}).fit()

    def test_engines_without_the_first_weights_are_an_error(self) -> None:
        @attrs.define
        class NoFirst(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None: ...

        with pytest.raises(SyncError, match="after fit_start the engine holds version -1"):
            Run(cycles(1), plugins=[NoFirst()]).fit()


class TestRows:
    def test_metrics_under_one_name_from_two_sources_are_an_error(self) -> None:
        class Engine(FakeEngine):
            def take_metrics(self) -> Mapping[str, object]:
                return {"loss": Mean(1)}

        with pytest.raises(Exception, match="report loss; rename one"):
            Run(cycles(1), ports={"engine": Engine()}).fit()

    def test_handler_times_are_in_the_row_and_late_ones_in_the_summary(self) -> None:
        run = Run(cycles(1, total_steps=2))

        run.fit()

        for _, row in run.sink.rows:
            assert {"timing_s/hook/weight_sync", "timing_s/hook/metric_aggregation"} <= row.keys()
        summary = run.witness.of(FitEnd)[0].summary
        assert summary["timing_s/hook/log_after_collect"] > 0
        assert summary["steps"] == 2

    def test_iteration_metrics_and_their_values_are_read_only(self) -> None:
        run = Run(cycles(1, total_steps=1), learner=FakeLearner([{"loss": [1.0, 2.0], "histogram": {0.0: 1}}]))
        run.fit()

        (event,) = run.witness.of(IterationEnd)
        assert event.metrics["loss"] == (1.0, 2.0)
        with pytest.raises(TypeError):
            event.metrics["histogram"][0.0] = 2
        with pytest.raises(TypeError):
            event.metrics["loss"] = 2
        assert run.sink.column("loss") == [(1, 1.5)]

    def test_learner_metric_measured_by_the_loop_is_refused(self) -> None:
        with pytest.raises(MetricError, match="reports 'timing_s/step', which the loop measures"):
            Run(cycles(1), learner=FakeLearner([{"timing_s/step": 1.0}])).fit()

    def test_second_call_of_fit_is_refused(self) -> None:
        trainer = Run(cycles(1, total_steps=1)).trainer()
        trainer.fit()

        with pytest.raises(RuntimeError, match="was called twice"):
            trainer.fit()
