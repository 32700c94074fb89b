"""The plan: the order of handlers, and the faults that a composition is refused for."""

from __future__ import annotations

import itertools
import subprocess
import sys

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer import Plugin, Priority, on
from hooktrainer.bus import Bus
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.bus.plan_text import describe
from hooktrainer.errors import PlanError
from hooktrainer.events import (
    Event,
    FitEnd,
    FitStart,
    IterationEnd,
    IterationStart,
    StepEnd,
    StepStart,
    WeightsSynced,
    snake_case,
)
from hooktrainer.testing import FakeBus
from hooktrainer_plugins.adaptive_kl import AdaptiveKL
from hooktrainer_plugins.checkpoint import Checkpoint
from hooktrainer_plugins.disk_space import DiskSpace
from hooktrainer_plugins.dynamic_sampling import DynamicSampling
from hooktrainer_plugins.kl_guard import KLGuard
from hooktrainer_plugins.log_after_collect import LogAfterCollect
from hooktrainer_plugins.metric_aggregation import MetricAggregation
from hooktrainer_plugins.nonfinite_guard import NonfiniteGuard
from hooktrainer_plugins.staleness import Staleness
from hooktrainer_plugins.validation import Validation
from hooktrainer_plugins.watchdog import Watchdog
from hooktrainer_plugins.weight_sync import WeightSync

QUICKSTART = (MetricAggregation, WeightSync, Staleness, Validation, LogAfterCollect)


def entries(*plugins: Plugin, **priorities: dict[str, object]) -> list[PlacedPlugin]:
    """Entries as YAML gives them; priorities by instance name."""
    bare = [PlacedPlugin.of(plugin, place) for place, plugin in enumerate(plugins)]
    return [attrs.evolve(entry, priority=priorities.get(entry.name, {})) for entry in bare]


def labels(plan: Plan, event: type[Event]) -> list[str]:
    return [handler.label for handler in plan.handlers[event]]


def faults_of(*plugins: Plugin | PlacedPlugin) -> str:
    with pytest.raises(PlanError) as caught:
        Plan.build(plugins)
    return str(caught.value)


BAND_HINT = (
    "Write a number such as 350, or Priority.SYNC + 50 in Python. The bands are PREPARE 100, COLLECT 200, SYNC 300, "
    "EVALUATE 400, REDUCE 500, REPORT 600, SAVE 700, CLEANUP 800."
)


@attrs.define
class Recorder(Plugin):
    @on(StepEnd, priority=Priority.REPORT)
    def handle(self, event: StepEnd) -> None: ...


class TestOrder:
    def test_order_of_bands_does_not_depend_on_the_plugin_list(self) -> None:
        for order in itertools.permutations(QUICKSTART):
            plan = Plan.build([cls() for cls in order])

            assert labels(plan, StepEnd) == [
                "staleness.collect_leftovers",
                "weight_sync.sync",
                "validation.evaluate",
                "metric_aggregation.reduce",
                "log_after_collect.write",
            ]

    @given(st.lists(st.integers(100, 999), min_size=1, max_size=12))
    def test_handlers_run_by_priority_then_by_position_in_the_list(self, numbers: list[int]) -> None:
        listed = [PlacedPlugin(Recorder(), f"p{i}", priority={"step_end": number}) for i, number in enumerate(numbers)]

        plan = Plan.build(listed)

        expected = [f"p{i}.handle" for i, _ in sorted(enumerate(numbers), key=lambda pair: (pair[1], pair[0]))]
        assert labels(plan, StepEnd) == expected

    def test_handlers_of_equal_priority_run_in_list_order_in_every_process(self) -> None:
        source = """
import attrs
from hooktrainer import Bus, Plugin, on
from hooktrainer.events import StepEnd
from hooktrainer.bus import Bus
from hooktrainer.bus.handlers import PlacedPlugin
called = []
@attrs.define
class P(Plugin):
    name: str
    @on(StepEnd)
    def handle(self, event: StepEnd) -> None:
        called.append(self.name)
Bus.compose([PlacedPlugin(P(n), n) for n in "abcdef"]).emit(StepEnd(step=1, version=0, iterations=1))
print("".join(called))
"""
        processes = [
            subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) for _ in range(20)
        ]
        assert {process.communicate()[0].strip() for process in processes} == {"abcdef"}

    def test_a_handler_between_two_bands_belongs_to_the_lower_one(self) -> None:
        assert Priority.band(399) is Priority.SYNC
        assert Priority.band(400) is Priority.EVALUATE
        assert Priority.band(10_000) is Priority.CLEANUP
        with pytest.raises(ValueError, match="before the first band, PREPARE 100"):
            Priority.band(99)

    def test_order_up_to_ties_ignores_the_order_of_equal_priorities(self) -> None:
        first = Plan.build([PlacedPlugin(Recorder(), "a"), PlacedPlugin(Recorder(), "b")])
        second = Plan.build([PlacedPlugin(Recorder(), "b"), PlacedPlugin(Recorder(), "a")])

        assert first.order_up_to_ties() == second.order_up_to_ties()
        assert labels(first, StepEnd) != labels(second, StepEnd)


class TestPriorityFromYaml:
    def test_priority_from_yaml_overrides_the_priority_of_the_handler(self) -> None:
        plan = Plan.build(entries(MetricAggregation(), LogAfterCollect(), log_after_collect={"step_end": 650}))

        assert plan.handlers[StepEnd][-1].number == 650

    def test_priority_of_an_event_with_two_handlers_must_name_the_method(self) -> None:
        text = faults_of(*entries(MetricAggregation(), LogAfterCollect(), log_after_collect={"fit_end": 750}))

        assert "plugins[1].priority.fit_end" in text
        assert "name the method instead: write_unreported, close" in text

    def test_priority_of_a_misspelt_event_is_a_fault_with_a_suggestion(self) -> None:
        text = faults_of(*entries(WeightSync(), weight_sync={"step_ned": 300}))

        assert "plugins[0].priority.step_ned" in text
        assert "Did you mean 'step_end'?" in text

    @pytest.mark.parametrize("number", ["300", 300.0, True, None, 99, -1])
    def test_priority_below_100_or_not_an_integer_is_a_fault(self, number: object) -> None:
        text = faults_of(*entries(WeightSync(), weight_sync={"sync": number}))
        assert "priority" in text
        assert text.endswith(BAND_HINT)

    @pytest.mark.parametrize("number", ["SYNC", 350.5, None, 99, StepEnd])
    def test_priority_of_a_handler_that_is_not_in_a_band_shows_how_to_write_one(self, number: object) -> None:
        @attrs.define
        class Odd(Plugin):
            @on(StepEnd, priority=number)
            def handle(self, event: StepEnd) -> None: ...

        text = faults_of(Odd())
        assert "Odd.handle has the priority " in text
        assert text.endswith(BAND_HINT)


@attrs.define
class EarlyLogger(Plugin):
    @on(WeightsSynced, priority=Priority.REPORT, needs=["metrics.row"])
    def write(self, event: WeightsSynced) -> None: ...


class TestReadsAndWrites:
    def test_reader_of_the_row_in_weights_synced_before_reduce_is_refused_and_both_handlers_named(self) -> None:
        for order in itertools.permutations([MetricAggregation(), WeightSync(), EarlyLogger()]):
            text = faults_of(*order)

            assert (
                "early_logger.write (weights_synced, REPORT 600, emitted in step_end SYNC of weight_sync.sync)" in text
            )
            assert "reads 'metrics.row' before metric_aggregation.reduce (step_end, REDUCE 500) makes it" in text

    def test_reader_of_the_row_in_weights_synced_is_accepted_if_the_sync_runs_after_reduce(self) -> None:
        @attrs.define
        class LateSync(Plugin):
            @on(StepEnd, priority=Priority.SAVE, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None: ...

        Plan.build([MetricAggregation(), LateSync(), EarlyLogger()])

    def test_logger_that_closes_before_the_last_row_is_reduced_is_refused(self) -> None:
        for priority in ({"close": 450}, {"write_unreported": 450}, {"close": 450, "write_unreported": 440}):
            text = faults_of(*entries(MetricAggregation(), LogAfterCollect(), log_after_collect=priority))

            assert "reads 'metrics.row' before metric_aggregation.finish (fit_end, REDUCE 500)" in text

    def test_logger_that_closes_before_it_writes_is_refused(self) -> None:
        text = faults_of(*entries(MetricAggregation(), LogAfterCollect(), log_after_collect={"close": 550}))

        assert "log_after_collect.close (fit_end, REDUCE 550) reads 'sinks.written' before" in text

    def test_reporting_before_reducing_is_refused(self) -> None:
        text = faults_of(
            *entries(
                MetricAggregation(),
                LogAfterCollect(),
                metric_aggregation={"reduce": 600},
                log_after_collect={"write": 500},
            )
        )

        assert (
            "log_after_collect.write (step_end, REDUCE 500) reads 'metrics.row' before metric_aggregation.reduce"
            in text
        )

    def test_adding_to_a_key_after_its_maker_ran_is_refused(self) -> None:
        text = faults_of(*entries(MetricAggregation(), Validation(), WeightSync(), validation={"step_end": 550}))

        assert (
            "validation.evaluate (step_end, REDUCE 550) adds to 'metrics.row' after metric_aggregation.reduce" in text
        )

    def test_validating_before_the_weights_are_published_is_refused(self) -> None:
        text = faults_of(*entries(MetricAggregation(), WeightSync(), Validation(), validation={"step_end": 250}))

        assert "validation.evaluate (step_end, COLLECT 250) reads 'weights.published' before weight_sync.sync" in text

    def test_reading_a_key_that_no_handler_makes_is_refused_unless_it_is_optional(self) -> None:
        @attrs.define
        class Reader(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["metrics.rwo"])
            def read(self, event: StepEnd) -> None: ...

        @attrs.define
        class Lenient(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["something?"])
            def read(self, event: StepEnd) -> None: ...

        assert "'metrics.rwo', which no handler makes. Did you mean 'metrics.row'?" in faults_of(
            MetricAggregation(), Reader()
        )
        Plan.build([Lenient()])

    def test_adding_to_a_misspelt_key_is_refused_but_to_an_unused_key_is_accepted(self) -> None:
        @attrs.define
        class Adds(Plugin):
            @on(IterationEnd, adds=["metrics.rwo"])
            def add(self, event: IterationEnd) -> None: ...

        assert "adds to 'metrics.rwo', which no handler makes. Did you mean 'metrics.row'?" in faults_of(
            MetricAggregation(), Adds()
        )
        Plan.build([WeightSync()])

    def test_fault_of_a_missing_key_names_the_plugin_that_makes_it(self) -> None:
        text = faults_of(Validation(), LogAfterCollect())

        assert "needs 'weights.published', which no handler makes. Add weight_sync to the plugins." in text
        assert "needs 'metrics.row', which no handler makes. Add metric_aggregation to the plugins." in text

    def test_two_makers_of_one_key_are_refused(self) -> None:
        @attrs.define
        class Another(Plugin):
            @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
            def reduce(self, event: StepEnd) -> None: ...

        text = faults_of(PlacedPlugin(MetricAggregation(), "one"), PlacedPlugin(Another(), "two"))

        assert "'metrics.row' is made twice in one step: by one.reduce" in text
        assert "by two.reduce" in text

    def test_key_made_every_nth_step_must_be_read_as_optional(self) -> None:
        @attrs.define
        class Judge(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE, makes=["judge.scores"], every=2)
            def judge(self, event: StepEnd) -> None: ...

        @attrs.define
        class Reader(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["judge.scores"])
            def read(self, event: StepEnd) -> None: ...

        @attrs.define
        class Lenient(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["judge.scores?"])
            def read(self, event: StepEnd) -> None: ...

        assert "needs=['judge.scores?']" in faults_of(Judge(), Reader())
        Plan.build([Judge(), Lenient()])

    def test_key_made_in_fit_start_is_available_in_all_later_events(self) -> None:
        @attrs.define
        class Maker(Plugin):
            @on(FitStart, makes=["vocabulary"])
            def make(self, event: FitStart) -> None: ...

        @attrs.define
        class Reader(Plugin):
            @on(IterationStart, needs=["vocabulary"])
            def read(self, event: IterationStart) -> None: ...

            @on(FitEnd, needs=["vocabulary"])
            def read_again(self, event: FitEnd) -> None: ...

        Plan.build([Reader(), Maker()])

    def test_reading_iteration_metrics_in_iteration_start_is_refused(self) -> None:
        @attrs.define
        class Reader(Plugin):
            @on(IterationStart, needs=["iteration.metrics"])
            def read(self, event: IterationStart) -> None: ...

        assert "before the loop makes it" in faults_of(Reader())


@attrs.frozen(kw_only=True)
class ScoresJudged(Event):
    """A signal of a user."""


class TestSignals:
    def test_custom_event_is_delivered_in_the_band_of_its_emitter(self) -> None:
        @attrs.define
        class Judge(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE, emits=[ScoresJudged], makes=["judge.scores"])
            def judge(self, event: StepEnd) -> None: ...

        @attrs.define
        class Listener(Plugin):
            @on(ScoresJudged, needs=["judge.scores"])
            def listen(self, event: ScoresJudged) -> None: ...

        plan = Plan.build([Listener(), Judge(), Recorder()])

        assert [visit.handler.label for visit in plan.walk(StepEnd)] == [
            "judge.judge",
            "listener.listen",
            "recorder.handle",
        ]
        assert "    scores_judged" in describe(plan)
        assert "a signal that no handler emits" in faults_of(Listener())

    def test_events_that_emit_each_other_are_refused_and_the_cycle_named(self) -> None:
        @attrs.frozen(kw_only=True)
        class Answer(Event):
            pass

        @attrs.define
        class Cycle(Plugin):
            @on(StepEnd, emits=[ScoresJudged])
            def start(self, event: StepEnd) -> None: ...

            @on(ScoresJudged, emits=[Answer])
            def ask(self, event: ScoresJudged) -> None: ...

            @on(Answer, emits=[ScoresJudged])
            def reply(self, event: Answer) -> None: ...

        text = faults_of(Cycle())

        assert "in a cycle" in text
        assert "cycle.ask on scores_judged -> cycle.reply on answer" in text

    def test_plugin_that_emits_an_event_of_the_loop_is_refused(self) -> None:
        @attrs.define
        class Ends(Plugin):
            @on(StepEnd, emits=[FitEnd])
            def end(self, event: StepEnd) -> None: ...

        assert "Ends.end declares to emit fit_end, which the loop sends" in faults_of(Ends())

    def test_weights_synced_is_emitted_once_per_step_and_only_in_step_end(self) -> None:
        @attrs.define
        class Sometimes(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced], every=2)
            def sync(self, event: StepEnd) -> None: ...

        @attrs.define
        class Elsewhere(Plugin):
            @on(IterationEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: IterationEnd) -> None: ...

        @attrs.define
        class Another(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None: ...

        assert "two.sync (step_end, SYNC 300) syncs the weights, but one.sync" in faults_of(
            PlacedPlugin(WeightSync(), "one"), PlacedPlugin(Another(), "two")
        )
        for kind in (Sometimes, Elsewhere):
            assert "may do so only on step_end and without `every`" in faults_of(kind())

    def test_emitted_events_are_delivered_in_the_order_of_their_declaration(self) -> None:
        @attrs.frozen(kw_only=True)
        class Second(Event):
            pass

        @attrs.define
        class Sends(Plugin):
            @on(StepEnd, emits=[ScoresJudged, Second])
            def send(self, event: StepEnd) -> None: ...

            @on(ScoresJudged, makes=["x"])
            def make(self, event: ScoresJudged) -> None: ...

            @on(Second, needs=["x?"])
            def read(self, event: Second) -> None: ...

        Plan.build([Sends()])

    def test_key_made_in_a_nested_event_is_certain_there_and_optional_elsewhere(self) -> None:
        @attrs.define
        class Judge(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE, emits=[ScoresJudged])
            def judge(self, event: StepEnd) -> None: ...

            @on(ScoresJudged, makes=["verdict"])
            def make(self, event: ScoresJudged) -> None: ...

            @on(ScoresJudged, needs=["verdict"])
            def read(self, event: ScoresJudged) -> None: ...

        @attrs.define
        class Outside(Plugin):
            @on(StepEnd, priority=Priority.REPORT, needs=["verdict"])
            def read(self, event: StepEnd) -> None: ...

        Plan.build([Judge()])
        assert "does not make it in every step" in faults_of(Judge(), Outside())

    def test_two_plugins_with_one_name_are_refused(self) -> None:
        text = faults_of(Recorder(), Recorder())

        assert "plugins[1]: plugins[0] is named 'recorder' too; the names of plugins must differ" in text

    def test_the_name_that_is_advised_is_free(self) -> None:
        text = faults_of(Recorder(), PlacedPlugin(Recorder(), "recorder_2"), Recorder(), Recorder())

        assert [line.rpartition(" ")[2] for line in text.splitlines()] == ["recorder_3`", "recorder_4`"]

    @pytest.mark.parametrize("kind", [Checkpoint, WeightSync, MetricAggregation, Staleness, LogAfterCollect])
    @pytest.mark.parametrize("names", [(None, None), ("a", "b"), (None, "b")], ids=["unnamed", "named", "one named"])
    def test_a_second_plugin_of_which_a_run_has_only_one_gives_one_message(
        self, kind: type[Plugin], names: tuple[str | None, str | None]
    ) -> None:
        text = faults_of(*self.quickstart_with(kind, names))
        expected = f"a run has only one {snake_case(kind.__name__)}, and plugins[0] is one:"
        assert (text.count("\n"), text.startswith(f"plugins[1]: {expected}"), "name:" in text) == (0, True, False), text
        assert text.endswith("Remove one of them")

    @pytest.mark.parametrize("kind", [DynamicSampling, AdaptiveKL, NonfiniteGuard])
    def test_plugins_that_would_undo_each_other_are_refused_twice(self, kind: type[Plugin]) -> None:
        text = faults_of(*self.quickstart_with(kind, ("a", "b")))
        assert text.startswith(f"plugins[1]: a run has only one {snake_case(kind.__name__)}, and plugins[0] is one:")

    @pytest.mark.parametrize("kind", [Validation, KLGuard, Watchdog, DiskSpace])
    def test_plugins_that_a_run_can_have_twice_get_a_name_that_works(self, kind: type[Plugin]) -> None:
        text = faults_of(*self.quickstart_with(kind, (None, None)))
        name = snake_case(kind.__name__)
        assert (
            text == f"plugins[1]: plugins[0] is named '{name}' too; the names of plugins must differ: `name: {name}_2`"
        )
        Plan.build(self.quickstart_with(kind, (None, f"{name}_2")))

    def quickstart_with(self, kind: type[Plugin], names: tuple[str | None, str | None]) -> list[PlacedPlugin]:
        """Return the plugins of the quickstart, with two of a kind at the beginning of the list."""
        others = [each for each in QUICKSTART if each is not kind]
        placed = [PlacedPlugin.of(each(), place) for place, each in enumerate([kind, kind, *others])]
        return [attrs.evolve(one, name=name or one.name) for one, name in itertools.zip_longest(placed, names)]

    def test_a_subclass_counts_as_a_second_one(self) -> None:
        class Mine(Checkpoint):
            """A checkpoint plugin with other defaults."""

        text = faults_of(
            *(PlacedPlugin.of(each(), place) for place, each in enumerate([*QUICKSTART, Checkpoint, Mine]))
        )
        assert text.startswith("plugins[6]: a run has only one checkpoint, and plugins[5] is one:")

    def test_three_plugins_of_which_a_run_has_one_give_two_messages(self) -> None:
        text = faults_of(
            *(PlacedPlugin.of(each(), place) for place, each in enumerate([*QUICKSTART, *[Checkpoint] * 3]))
        )
        assert [line.partition(":")[0] for line in text.splitlines()] == ["plugins[6]", "plugins[7]"]

    @pytest.mark.parametrize("names", [("a", "b"), ("a", "a"), (None, None)])
    def test_one_object_at_two_places_is_refused(self, names: tuple[str | None, str | None]) -> None:
        plugin = Recorder()
        placed = [
            plugin if name is None else PlacedPlugin(plugin, name, f"plugins[{place}]")
            for place, name in enumerate(names)
        ]
        expected = "plugins[1]: this is the same object as plugins[0], and its handlers would be called twice"
        for build in (Plan.build, Bus.compose, lambda plugins: FakeBus(*plugins)):
            with pytest.raises(PlanError) as caught:
                build(placed)
            assert str(caught.value).startswith(expected)
            assert "name:" not in str(caught.value)

    def test_one_entry_at_two_places_is_refused(self) -> None:
        entry = PlacedPlugin(Recorder(), "a", "plugins[0]")
        assert faults_of(entry, entry).startswith("plugins[0]: this is the same object as plugins[0]")

    def test_one_object_at_two_places_without_addresses_is_named(self) -> None:
        plugin = Recorder()
        with pytest.raises(PlanError, match="'b' is the same object as 'a', and its handlers would be called twice"):
            FakeBus(PlacedPlugin(plugin, "a"), PlacedPlugin(plugin, "b"))


class TestHandlers:
    def test_all_faults_of_handlers_are_reported_together(self) -> None:
        @attrs.define
        class Broken(Plugin):
            period: int = 0

            @on(StepEnd, every="perod")
            def a(self, event: StepEnd) -> None: ...

            @on(StepEnd)
            def b(self) -> None: ...

            @on(StepEnd)
            def c(self, event: StepEnd, extra: int) -> None: ...

            @on("iteration_ned")
            def d(self, event: IterationEnd) -> None: ...

            @on(int)
            def e(self, event: int) -> None: ...

            @on(FitEnd, every=2)
            def f(self, event: FitEnd) -> None: ...

            @on(StepEnd, every="period")
            def g(self, event: StepEnd) -> None: ...

            @on(StepEnd)
            async def h(self, event: StepEnd) -> None: ...

            @on(StepEnd, emits=["weights_synced"])  # type: ignore[list-item]
            def i(self, event: StepEnd) -> None: ...

            @on(StepEnd)
            def j(self, event: IterationEnd) -> None: ...

            def on_step_end(self, event: StepEnd) -> None: ...

            @on(StepEnd)
            @staticmethod
            def k(event: StepEnd) -> None: ...

        lines = faults_of(Broken(), Recorder(), Recorder()).splitlines()

        expected = {
            "a": "there is no such option. Did you mean 'period'?",
            "b": "takes () but a handler takes one argument, the event",
            "c": "takes (event: 'StepEnd', extra: 'int') but a handler takes one argument",
            "d": "which is not an event. Events are classes: FitStart, StepStart, IterationStart, IterationEnd, "
            "StepEnd, WeightsSynced, FitEnd. Did you mean 'IterationEnd'?",
            "e": "is marked for int, which is not an event",
            "f": "has every= on fit_end, which belongs to no step",
            "g": "runs every 0 steps; expected an integer of at least 1",
            "h": "is async or a generator",
            "i": "declares to emit 'weights_synced', which is not an event class",
            "j": "is marked for StepEnd but its argument is annotated as IterationEnd",
            "on_step_end": "looks like a handler but has no @on(...)",
        }
        for method, text in expected.items():
            assert any(line.startswith(f"plugins[0]: Broken.{method} ") and text in line for line in lines), method
        assert any("is named 'recorder' too" in line for line in lines)

    def test_invalid_use_of_on_is_refused_at_decoration(self) -> None:
        with pytest.raises(TypeError, match="marked twice"):

            @on(StepStart)
            @on(StepEnd)
            def twice(self: object, event: StepEnd) -> None: ...

        with pytest.raises(TypeError, match=r"@on over .*bare \(.*test_plan\.py, line \d+\) names no event"):

            @on
            def bare(self: object, event: StepEnd) -> None: ...

        with pytest.raises(TypeError, match=r"adds='metrics.row'\): expected a list, adds=\['metrics.row'\]"):
            on(StepEnd, adds="metrics.row")

    def test_plugin_with_fields_but_without_attrs_is_refused(self) -> None:
        class Forgot(Plugin):
            limit: float = 0.5

            @on(StepEnd)
            def handle(self, event: StepEnd) -> None: ...

        assert "Forgot has fields but no @attrs.define(kw_only=True) above the class" in faults_of(Forgot())

    def test_option_every_on_an_event_without_a_step_is_refused(self) -> None:
        @attrs.define
        class Odd(Plugin):
            @on(StepEnd, emits=[ScoresJudged])
            def send(self, event: StepEnd) -> None: ...

            @on(ScoresJudged, every=2)
            def listen(self, event: ScoresJudged) -> None: ...

        assert "Odd.listen has every= on scores_judged, which belongs to no step" in faults_of(Odd())

    def test_overridden_handler_without_on_is_refused(self) -> None:
        @attrs.define
        class Child(Recorder):
            def handle(self, event: StepEnd) -> None: ...

        assert "Child.handle overrides a handler but has no @on(...)" in faults_of(Child())

    def test_subclass_inherits_handlers(self) -> None:
        @attrs.define
        class Child(Recorder):
            @on(StepStart)
            def start(self, event: StepStart) -> None: ...

        plan = Plan.build([Child()])

        assert (labels(plan, StepEnd), labels(plan, StepStart)) == (["child.handle"], ["child.start"])

    def test_keys_made_by_a_faulty_handler_are_not_reported_as_missing(self) -> None:
        @attrs.define
        class Broken(Plugin):
            @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
            def make(self) -> None: ...

        assert faults_of(Broken(), LogAfterCollect()).count("\n") == 0


def test_describe_prints_the_plan_of_the_quickstart() -> None:
    assert describe(Plan.build([cls() for cls in QUICKSTART])).splitlines() == [
        "fit_start",
        "  100 PREPARE  staleness.set_strategy             makes replay.policy",
        "  100 PREPARE  validation.take_prompts",
        "  150 PREPARE  log_after_collect.open             needs run.restored?",
        "  300 SYNC     weight_sync.publish_first          makes weights.published",
        "step_start",
        "  (no handler)",
        "iteration_start",
        "  (no handler)",
        "iteration_end   (the loop makes iteration.metrics)",
        "  200 COLLECT  metric_aggregation.collect         needs iteration.metrics · adds metrics.row",
        "  200 COLLECT  staleness.collect                  needs iteration.metrics · adds metrics.row",
        "  600 REPORT   log_after_collect.keep             needs iteration.metrics",
        "step_end",
        "  200 COLLECT  staleness.collect_leftovers        adds metrics.row",
        "  300 SYNC     weight_sync.sync                   adds metrics.row · makes weights.published · emits weights_synced",  # noqa: E501
        "    weights_synced",
        "      (no handler)",
        "  400 EVALUATE validation.evaluate                needs weights.published · adds metrics.row · every 5",
        "  500 REDUCE   metric_aggregation.reduce          makes metrics.row",
        "  600 REPORT   log_after_collect.write            needs metrics.row",
        "fit_end",
        "  500 REDUCE   metric_aggregation.finish          adds metrics.row · makes metrics.row",
        "  600 REPORT   log_after_collect.write_unreported needs metrics.row? · makes sinks.written",
        "  800 CLEANUP  log_after_collect.close            needs metrics.row?, sinks.written",
    ]
