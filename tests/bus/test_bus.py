"""The bus: which handlers are called, when, and the failures of handlers."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue

import attrs
import pytest

from hooktrainer import Bus, Plugin, Priority, on
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.errors import BusError, MetricError, PlanError, RecordError
from hooktrainer.events import Control, Event, FitEnd, FitStart, IterationEnd, StepEnd, StepStart, WeightsSynced
from hooktrainer.metrics import Mean, Record, Sum


@attrs.define
class Calls(Plugin):
    """Records its calls."""

    log: list[str]
    name: str = "calls"
    act: Callable[[Event], None] = lambda _: None

    @on(StepEnd)
    def handle(self, event: StepEnd) -> None:
        self.log.append(self.name)
        self.act(event)

    @on(FitEnd)
    def finish(self, event: FitEnd) -> None:
        self.log.append(f"{self.name} {event.status}")
        self.act(event)


def step_end(step: int = 1, **fields: object) -> StepEnd:
    return StepEnd(step=step, version=step - 1, iterations=1, **fields)


def raising(error: BaseException) -> Callable[[Event], None]:
    def act(_: Event) -> None:
        raise error

    return act


class TestReferences:
    def test_bus_keeps_plugins_alive_without_other_references(self) -> None:
        log: list[str] = []

        @attrs.define
        class Marked(Plugin):
            act: Callable[[str], None]
            handle = on(StepEnd)(lambda self, event: self.act("lambda"))  # noqa: E731, RUF100

        partial = functools.partial(log.append)
        bus = Bus.compose([*(PlacedPlugin(Calls(log, str(i)), f"p{i}") for i in range(3)), Marked(partial)])
        gc.collect()

        bus.emit(step_end())

        assert log == ["0", "1", "2", "lambda"]

    def test_a_detached_plugin_can_be_collected(self) -> None:
        plugin = Calls([])
        bus = Bus.compose([plugin])
        gone = weakref.ref(plugin)

        bus.detach()
        del plugin
        gc.collect()

        assert gone() is None

    def test_two_buses_in_one_process_are_independent(self) -> None:
        first, second = [], []
        bus_a, bus_b = Bus.compose([Calls(first)]), Bus.compose([Calls(second)])

        bus_a.emit(step_end())
        del bus_a
        gc.collect()
        bus_b.emit(step_end(2))

        assert (len(first), len(second)) == (1, 1)

    def test_receivers_of_earlier_buses_are_released(self) -> None:
        counts = set()
        for _ in range(100):
            bus = Bus.compose([Calls([])])
            bus.emit(step_end())
            counts.add(len(list(bus.signal(StepEnd).receivers_for(None))))

        assert counts == {1}


class TestSignal:
    def test_signal_lists_its_handlers_in_plan_order(self) -> None:
        log: list[str] = []
        listed = [
            PlacedPlugin(Calls(log, name), name, priority={"handle": at}) for name, at in (("b", 300), ("a", 200))
        ]
        bus = Bus.compose(listed)

        assert [call.__self__.name for call in bus.signal("step_end").receivers_for(None)] == ["a", "b"]
        assert bus.signal(StepEnd).has_receivers_for(None)

    def test_muted_signal_calls_no_handler(self) -> None:
        log: list[str] = []
        bus = Bus.compose([Calls(log)])

        with bus.signal(StepEnd).muted():
            bus.emit(step_end())
        bus.emit(step_end(2))

        assert log == ["calls"]

    def test_connecting_to_a_signal_of_a_plan_is_refused(self) -> None:
        signal = Bus.compose([Calls([])]).signal(StepEnd)

        with pytest.raises(BusError, match="plan is frozen"):
            signal.connect(print)
        with pytest.raises(BusError, match="plan is frozen"), signal.connected_to(print):
            pass
        with pytest.raises(BusError, match="plan is frozen"):
            signal.disconnect(print)

    def test_emitting_an_event_outside_the_plan_is_an_error(self) -> None:
        @attrs.frozen(kw_only=True)
        class Strange(Event):
            pass

        with pytest.raises(BusError, match="Strange is not a signal of this plan"):
            Bus.compose([]).emit(Strange())


class TestFailures:
    def test_handler_error_names_plugin_event_band_step_and_address_and_stops_delivery(self) -> None:
        log: list[str] = []
        error = ValueError("boom")
        bus = Bus.compose(
            [
                Calls(log, "a"),
                PlacedPlugin(Calls(log, "b", raising(error)), "b", "plugins[1]"),
                PlacedPlugin(Calls(log, "c"), "c"),
            ]
        )

        with pytest.raises(ValueError, match="boom") as caught:
            bus.emit(step_end(7))

        assert log == ["a", "b"]
        assert caught.value is error
        assert error.__notes__ == ["raised by plugin 'b' (plugins[1]): Calls.handle on step_end, COLLECT 200, step 7"]

    def test_fit_end_calls_every_handler_and_raises_the_first_error(self) -> None:
        log: list[str] = []
        errors = [ValueError("first"), KeyboardInterrupt()]
        plugins = [Calls(log, "a", raising(errors[0])), Calls(log, "b", raising(errors[1])), Calls(log, "c")]
        bus = Bus.compose([PlacedPlugin(plugin, plugin.name) for plugin in plugins])

        with pytest.raises(ValueError, match="first"):
            bus.emit(FitEnd(status="failed"))

        assert log == ["a failed", "b failed", "c failed"]

    def test_error_in_a_nested_event_of_fit_end_stops_no_other_handler(self) -> None:
        log: list[str] = []

        @attrs.frozen(kw_only=True)
        class Farewell(Event):
            pass

        @attrs.define
        class Nested(Plugin):
            @on(FitEnd, emits=[Farewell])
            def end(self, event: FitEnd) -> None:
                event.control.emit(Farewell())

            @on(Farewell)
            def breaks(self, event: Farewell) -> None:
                raise ValueError("nested")

            @on(Farewell)
            def other(self, event: Farewell) -> None:
                log.append("other")

            @on(FitEnd, priority=Priority.CLEANUP)
            def close(self, event: FitEnd) -> None:
                log.append("close")
                raise OSError("disk full")

        with pytest.raises(ValueError, match="nested") as caught:
            Bus.compose([Nested()]).emit(FitEnd(status="completed"))

        assert log == ["other", "close"]
        assert "OSError: disk full" in caught.value.__notes__[-1]
        assert "Nested.close on fit_end, CLEANUP 800" in caught.value.__notes__[-1]

    def test_events_emitted_by_a_failed_handler_are_discarded(self) -> None:
        log: list[int] = []

        @attrs.define
        class Sync(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                event.control.emit(WeightsSynced(step=event.step, version=event.step))
                if event.step == 1:
                    raise ValueError("after the emit")

            @on(WeightsSynced)
            def heard(self, event: WeightsSynced) -> None:
                log.append(event.step)

        bus = Bus.compose([Sync()])
        with pytest.raises(ValueError, match="after the emit"):
            bus.emit(step_end(1))
        bus.emit(step_end(2))

        assert log == [2]


class TestControl:
    def test_first_stop_reason_is_kept(self) -> None:
        bus = Bus.compose([Calls([], act=lambda event: [event.control.stop("first"), event.control.stop("second")])])

        bus.emit(step_end())

        assert bus.control.reason == "first"

    def test_emitted_event_is_delivered_at_the_end_of_the_band(self) -> None:
        log: list[str] = []

        @attrs.define
        class Sync(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                log.append("sync")
                event.control.emit(WeightsSynced(step=1, version=1))

            @on(StepEnd, priority=Priority.SYNC + 50)
            def same_band(self, event: StepEnd) -> None:
                log.append("same band")

            @on(WeightsSynced, priority=Priority.CLEANUP)
            def heard(self, event: WeightsSynced) -> None:
                log.append("heard")

            @on(StepEnd, priority=Priority.EVALUATE)
            def next_band(self, event: StepEnd) -> None:
                log.append("next band")

        Bus.compose([Sync()]).emit(step_end())

        assert log == ["sync", "same band", "heard", "next band"]

    def test_emitting_an_undeclared_event_is_an_error(self) -> None:
        bus = Bus.compose([Calls([], act=lambda event: event.control.emit(StepStart(step=1, version=0)))])

        with pytest.raises(BusError, match=r"calls.handle .* emitted step_start without declaring it"):
            bus.emit(step_end())

    def test_handler_can_emit_events_queued_by_another_thread(self) -> None:
        @attrs.frozen(kw_only=True)
        class Arrived(Event):
            number: int

        log: list[object] = []

        @attrs.define
        class Mailbox(Plugin):
            mail: SimpleQueue[int] = attrs.field(factory=SimpleQueue)

            @on(FitStart)
            def start(self, event: FitStart) -> None:
                thread = threading.Thread(target=lambda: [self.mail.put(number) for number in range(3)])
                thread.start()
                thread.join()

            @on(StepStart, emits=[Arrived])
            def read(self, event: StepStart) -> None:
                while not self.mail.empty():
                    event.control.emit(Arrived(number=self.mail.get_nowait()))

            @on(Arrived)
            def arrived(self, event: Arrived) -> None:
                log.append((event.number, threading.current_thread() is threading.main_thread()))

            @on(StepStart, priority=Priority.SYNC)
            def step(self, event: StepStart) -> None:
                log.append("step")

        bus = Bus.compose([Mailbox()])
        bus.emit(FitStart())
        bus.emit(StepStart(step=1, version=0))

        assert log == [(0, True), (1, True), (2, True), "step"]

    def test_handler_that_emits_its_own_event_is_refused(self) -> None:
        @attrs.frozen(kw_only=True)
        class Tick(Event):
            """Sent again by its own handler."""

        @attrs.define
        class Ticks(Plugin):
            @on(Tick, emits=[Tick])
            def tick(self, event: Tick) -> None:
                event.control.emit(Tick())

        with pytest.raises(PlanError, match="in a cycle: ticks.tick on tick"):
            Bus.compose([Ticks()])

    def test_custom_event_emitted_before_the_row_is_made_cannot_read_the_row(self) -> None:
        @attrs.frozen(kw_only=True)
        class Arrived(Event):
            """Sent before the row is made."""

        @attrs.define
        class Early(Plugin):
            @on(FitStart, emits=[Arrived])
            def start(self, event: FitStart) -> None:
                event.control.emit(Arrived())

            @on(Arrived, needs=["metrics.row"])
            def arrived(self, event: Arrived) -> None:
                raise AssertionError

        @attrs.define
        class Makes(Plugin):
            @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
            def make(self, event: StepEnd) -> None:
                event.record.seal()

        with pytest.raises(PlanError, match=r"early.arrived \(arrived, .*needs 'metrics.row'"):
            Bus.compose([Makes(), Early()])
        assert not hasattr(Control, "post")

    def test_guard_runs_at_emit_and_a_guarded_event_must_be_emitted(self) -> None:
        seen: list[str] = []

        @attrs.define
        class Sync(Plugin):
            lazy: bool = False

            @on(StepEnd, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                if not self.lazy:
                    event.control.emit(WeightsSynced(step=1, version=1))
                    seen.append("after the emit")

            @on(WeightsSynced)
            def heard(self, event: WeightsSynced) -> None:
                seen.append("heard")

        bus = Bus.compose([Sync()])
        bus.guard(WeightsSynced, lambda event: seen.append("guard"))
        bus.emit(step_end())
        assert seen == ["guard", "after the emit", "heard"]

        lazy = Bus.compose([Sync(lazy=True)])
        lazy.guard(WeightsSynced, lambda event: None)
        with pytest.raises(BusError, match="sync.sync .* ended without emitting weights_synced"):
            lazy.emit(step_end())

    def test_control_of_an_event_that_was_not_emitted_by_a_bus_raises(self) -> None:
        with pytest.raises(BusError, match="not sent by a bus"):
            step_end().control.stop("x")

    def test_emitting_through_the_bus_inside_a_handler_is_an_error(self) -> None:
        buses: list[Bus] = []
        buses.append(Bus.compose([Calls([], act=lambda event: buses[0].emit(FitStart()))]))

        with pytest.raises(BusError, match=r"uses event.control.emit"):
            buses[0].emit(step_end())


@attrs.define
class Recording(Plugin):
    act: Callable[[IterationEnd], None]

    @on(IterationEnd, adds=["metrics.row"])
    def adds(self, event: IterationEnd) -> None:
        self.act(event)

    @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
    def seals(self, event: StepEnd) -> None:
        event.record.seal()

    @on(StepEnd, priority=Priority.REPORT)
    def undeclared(self, event: StepEnd) -> None:
        self.act(event)


@attrs.frozen(kw_only=True)
class Nested(Event):
    """Sent inside a band."""


@attrs.define
class Banded(Plugin):
    """Records its calls before, in and after EVALUATE."""

    log: list[str]
    fails: bool = False

    @on(StepEnd, priority=Priority.EVALUATE - 1)
    def before(self, event: StepEnd) -> None:
        self.log.append("before")

    @on(StepEnd, priority=Priority.EVALUATE, emits=[Nested], every=2)
    def inside(self, event: StepEnd) -> None:
        self.log.append("inside")
        event.control.emit(Nested())

    @on(Nested)
    def nested(self, event: Nested) -> None:
        self.log.append("nested")
        if self.fails:
            raise ValueError("broken")

    @on(StepEnd, priority=Priority.REDUCE)
    def after(self, event: StepEnd) -> None:
        self.log.append("after")


class TestAround:
    def banded(self, log: list[str], *, fails: bool = False) -> Bus:
        @contextmanager
        def context() -> Iterator[None]:
            log.append("enter")
            try:
                yield
            finally:
                log.append("exit")

        bus = Bus.compose([Banded(log, fails=fails)])
        bus.around(StepEnd, Priority.EVALUATE, context)
        return bus

    def test_context_wraps_a_band_and_its_nested_events(self) -> None:
        log: list[str] = []
        bus = self.banded(log)
        for step in (2, 4):
            log.clear()
            bus.emit(step_end(step=step))
            assert log == ["before", "enter", "inside", "nested", "exit", "after"]

    def test_context_is_exited_if_a_handler_raises(self) -> None:
        log: list[str] = []
        with pytest.raises(ValueError, match="broken"):
            self.banded(log, fails=True).emit(step_end(step=2))
        assert log == ["before", "enter", "inside", "nested", "exit"]

    def test_context_is_not_entered_if_no_handler_of_the_band_is_due(self) -> None:
        log: list[str] = []
        self.banded(log).emit(step_end(step=1))
        assert log == ["before", "after"]

    def test_context_around_a_band_without_handlers_is_accepted(self) -> None:
        Bus.compose([]).around(StepEnd, Priority.EVALUATE, nullcontext)


class TestRecord:
    def emit(self, act: Callable[[IterationEnd], None], **fields: object) -> Record:
        record = Record(1)
        Bus.compose([Recording(act)]).emit(IterationEnd(step=1, version=0, iteration=0, **fields), record)
        return record

    def test_reduction_conflict_names_the_handlers_that_wrote_the_metric(self) -> None:
        record = self.emit(lambda event: event.record.add({"x": Sum(1)}))

        with pytest.raises(MetricError, match="Sum from recording.adds, Mean from the loop"):
            record.add({"x": Mean(1)})

    def test_undeclared_write_to_the_record_raises(self) -> None:
        with pytest.raises(BusError, match=r"recording.adds .* reads the row without declaring it: @on\(..., needs="):
            self.emit(lambda event: event.record.row)
        with pytest.raises(BusError, match="seals the row without declaring it"):
            self.emit(lambda event: event.record.seal())
        bus, record = Bus.compose([Recording(lambda event: event.record.add({}))]), Record(1)
        with pytest.raises(BusError, match=r"recording.undeclared .* adds metrics without declaring it"):
            bus.emit(step_end(), record)

    def test_record_used_after_its_handler_returned_raises(self) -> None:
        kept: list[IterationEnd] = []
        self.emit(kept.append)

        with pytest.raises(BusError, match="outside a handler"):
            kept[0].record.add({"x": Sum(1)})

    def test_record_of_an_earlier_step_raises(self) -> None:
        kept: list[IterationEnd] = []

        def act(event: IterationEnd) -> None:
            kept.append(event)
            kept[0].record.add({"x": Sum(1)})

        bus = Bus.compose([Recording(act)])
        bus.emit(IterationEnd(step=1, version=0, iteration=0), Record(1))
        with pytest.raises(RecordError, match="recording.adds used the record of step 1 after its event"):
            bus.emit(IterationEnd(step=2, version=1, iteration=0), Record(2))

    def test_using_the_record_from_another_thread_raises(self) -> None:
        errors: list[BaseException] = []

        def from_elsewhere(event: IterationEnd) -> None:
            def work() -> None:
                for use in (
                    lambda: event.record.add({"x": Sum(1)}),
                    lambda: event.control.stop("x"),
                    lambda: event.control.emit(StepStart(step=1, version=0)),
                ):
                    try:
                        use()
                    except BusError as error:
                        errors.append(error)

            thread = threading.Thread(target=work, name="worker")
            thread.start()
            thread.join()

        record = self.emit(from_elsewhere)

        assert len(errors) == 3
        assert "from thread 'worker'" in str(errors[0])
        assert record.empty

    def test_emitting_from_another_thread_is_an_error(self) -> None:
        bus = Bus.compose([])
        bus.emit(FitStart())
        errors: list[BusError] = []

        def work() -> None:
            try:
                bus.emit(FitStart())
            except BusError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

        assert len(errors) == 1

    def test_the_metrics_of_an_iteration_are_read_only(self) -> None:
        from types import MappingProxyType

        def tamper(event: IterationEnd) -> None:
            del event.metrics["loss"]  # type: ignore[attr-defined]

        shared: Mapping[str, object] = MappingProxyType({"loss": 1})
        with pytest.raises(TypeError) as caught:
            self.emit(tamper, metrics=shared)

        assert "raised by plugin 'recording'" in caught.value.__notes__[0]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            step_end().step = 2  # type: ignore[misc]

    def test_reading_an_open_row_raises(self) -> None:
        @attrs.define
        class Reader(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row?"])
            def read(self, event: StepEnd) -> None:
                event.record.row  # noqa: B018

        with pytest.raises(RecordError, match="before it was sealed"):
            Bus.compose([Reader()]).emit(step_end(), Record(1))


class TestEvery:
    @attrs.define
    class Periodic(Plugin):
        log: list[int]
        period: int = 3

        @on(StepEnd, every="period")
        def handle(self, event: StepEnd) -> None:
            self.log.append(event.step)

    def test_handler_with_every_runs_on_multiples_and_on_the_last_step(self) -> None:
        log: list[int] = []
        bus = Bus.compose([self.Periodic(log)])

        for step in range(1, 9):
            bus.emit(step_end(step, last=step == 8))

        assert log == [3, 6, 8]

    def test_receivers_of_a_step_exclude_handlers_that_are_not_due(self) -> None:
        signal = Bus.compose([self.Periodic([])]).signal(StepEnd)

        assert [len(list(signal.receivers_for(step_end(step)))) for step in (1, 2, 3)] == [0, 0, 1]


class TestTimes:
    def test_handler_times_are_in_the_row_except_those_after_the_seal(self) -> None:
        bus = Bus.compose([Calls([])])
        bus.times.start_record()
        bus.emit(step_end(1))
        row = bus.times.end_record()
        bus.emit(step_end(2))

        assert [(h.planned.label, h.calls) for h in bus.times.handlers] == [("calls.handle", 2), ("calls.finish", 0)]
        total = sum(handler.seconds for handler in bus.times.handlers)
        late = bus.times.late()["timing_s/hook/calls"]
        assert row["timing_s/hook/calls"].value + late == pytest.approx(total)
        assert late > 0
        assert max(handler.longest for handler in bus.times.handlers) <= total

    def test_plugins_that_run_only_after_the_seal_have_no_time_in_rows(self) -> None:
        @attrs.define
        class Seals(Plugin):
            @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
            def seal(self, event: StepEnd) -> None:
                event.record.seal()

        @attrs.define
        class Late(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
            def read(self, event: StepEnd) -> None:
                assert event.record.row == {}

        bus = Bus.compose([Calls([]), Seals(), Late()])
        bus.times.start_record()
        bus.emit(step_end(1), Record(1))
        assert bus.times.end_record().keys() == {"timing_s/hook/calls", "timing_s/hook/seals"}
        assert bus.times.late()["timing_s/hook/late"] > 0

    def test_handler_times_after_the_seal_are_not_in_the_next_row(self) -> None:
        bus = Bus.compose([Calls([])])
        bus.times.start_record()
        bus.times.end_record()
        bus.emit(step_end(1))
        bus.times.start_record()

        assert bus.times.end_record()["timing_s/hook/calls"].value == 0
