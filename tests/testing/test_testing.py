"""The test kit: the fake bus validates as a run does, and `check_plugin` detects faults."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from helpers.environments import Closable, Countdown, Talk
from helpers.one_set import OneSet
from hooktrainer import Plugin, Priority, on, state
from hooktrainer import ports as port_types
from hooktrainer.errors import ConfigError, PlanError, PortError, SyncError
from hooktrainer.events import Event, FitEnd, FitStart, IterationEnd, StepEnd, WeightsSynced
from hooktrainer.metrics import Sum
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.models.saved_decoder import SavedDecoder
from hooktrainer.plugin import port
from hooktrainer.sinks.tensorboard import TensorBoardSink
from hooktrainer.testing import (
    FakeBuffer,
    FakeBus,
    FakeCheckpointStore,
    FakeEngine,
    FakeKLControl,
    FakeLatestSamples,
    FakeLearner,
    FakeModelExport,
    FakePrompts,
    FakeRewindableSink,
    FakeRunState,
    FakeSampleLog,
    FakeSink,
    FakeTask,
    FakeTimeline,
    FakeTransport,
    ManualClock,
    check_order_independent,
    check_plugin,
)

QUICKSTART = [
    "metric_aggregation",
    "weight_sync",
    {"use": "staleness", "max_off_policy_threshold": 4},
    {"use": "validation", "every": 1},
    {"use": "log_after_collect", "sinks": ["jsonl"]},
]


@attrs.define(kw_only=True)
class Stopper(Plugin):
    """Stops."""

    limit: float = 0.2
    """Largest loss."""

    seen: int = state(0)

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def stop(self, event: StepEnd) -> None:
        self.seen += 1
        if event.record.row["loss"] > self.limit:
            event.control.stop(f"loss above {self.limit}")


class TestFakeBus:
    def test_fake_bus_calls_the_handlers_of_a_plugin(self, fake_bus: Callable[..., FakeBus]) -> None:
        bus = fake_bus(Stopper(limit=0.2), provides=["metrics.row"])
        bus.fire(StepEnd, step=1, row={"loss": 0.5})
        assert bus.control.reason == "loss above 0.2"

    def test_many_fake_buses_are_independent(self) -> None:
        stoppers = [Stopper() for _ in range(100)]
        for stopper in stoppers:
            FakeBus(stopper, provides=["metrics.row"]).fire(StepEnd, row={"loss": 0.0})

        assert [stopper.seen for stopper in stoppers] == [1] * 100

    def test_data_that_is_not_provided_is_a_plan_error(self) -> None:
        with pytest.raises(PlanError, match="needs 'metrics.row', which no handler makes"):
            FakeBus(Stopper())

    def test_read_of_the_row_in_weights_synced_is_refused(self) -> None:
        @attrs.define
        class Early(Plugin):
            @on(WeightsSynced, priority=Priority.REPORT, needs=["metrics.row"])
            def write(self, event: WeightsSynced) -> None: ...

        with pytest.raises(PlanError, match="reads 'metrics.row' before <stand-in for metrics.row>"):
            FakeBus(Early(), provides=["metrics.row"])

    def test_stand_in_has_the_given_event_and_priority(self) -> None:
        @attrs.define
        class Reader(Plugin):
            @on(StepEnd, priority=Priority.EVALUATE, needs=["judge.scores"])
            def read(self, event: StepEnd) -> None: ...

        FakeBus(Reader(), provides={"judge.scores": (StepEnd, Priority.COLLECT)})
        with pytest.raises(PlanError, match="before <stand-in for judge.scores>"):
            FakeBus(Reader(), provides={"judge.scores": (StepEnd, Priority.REPORT)})
        with pytest.raises(ConfigError, match=r"no built-in plugin makes that; add the place"):
            FakeBus(Reader(), provides=["judge.scores"])

    def test_row_has_the_metrics_added_by_plugins(self) -> None:
        @attrs.define
        class Adds(Plugin):
            @on(IterationEnd, adds=["metrics.row"])
            def add(self, event: IterationEnd) -> None:
                event.record.add({"mine": Sum(2)})

        bus = FakeBus(Adds(), provides=["metrics.row"])
        bus.fire(IterationEnd)
        bus.fire(IterationEnd)
        bus.fire(StepEnd)

        assert bus.row == {"mine": 4.0}

    def test_stand_in_for_weight_sync_emits_weights_synced_in_step_end(self) -> None:
        heard: list[Event] = []

        @attrs.define
        class Listener(Plugin):
            @on(WeightsSynced)
            def listen(self, event: WeightsSynced) -> None:
                heard.append(event)

        bus = FakeBus(Listener())
        bus.fire(StepEnd, step=3, last=True)

        assert [(event.step, event.version, event.last) for event in heard] == [(3, 3, True)]

    def test_weights_synced_with_a_version_other_than_the_step_is_refused(self) -> None:
        @attrs.define
        class Wrong(Plugin):
            @on(StepEnd, priority=Priority.SYNC, emits=[WeightsSynced])
            def sync(self, event: StepEnd) -> None:
                event.control.emit(WeightsSynced(step=event.step, version=event.step + 1))

        with pytest.raises(SyncError, match="has step 1 but version 2"):
            FakeBus(Wrong()).fire(StepEnd)

    def test_fire_accepts_events_of_other_plugins(self) -> None:
        @attrs.frozen(kw_only=True)
        class Judged(Event):
            score: float

        heard: list[float] = []

        @attrs.define
        class Listener(Plugin):
            """Handles an event of another plugin."""

            @on(Judged)
            def listen(self, event: Judged) -> None:
                heard.append(event.score)

        with pytest.raises(PlanError, match="handles a signal that no handler emits"):
            FakeBus(Listener())
        FakeBus(Listener(), provides=[Judged]).fire(Judged, score=0.5)
        check_plugin(Listener)

        assert heard == [0.5]

    def test_omitted_event_fields_have_the_values_of_a_run(self) -> None:
        bus = FakeBus()

        assert [bus.fire(kind, step=3).version for kind in (IterationEnd, StepEnd, WeightsSynced, FitEnd)] == [
            2,
            2,
            3,
            3,
        ]
        with pytest.raises(TypeError):
            bus.fire(IterationEnd, metrics={"a": {"b": 1}}).metrics["a"]["b"] = 2

    def test_fault_addresses_are_positions_in_the_list(self) -> None:
        with pytest.raises(PlanError, match=r"^plugins\[0\]: stopper.stop"):
            FakeBus(Stopper(), provides=["weights.published"])

    def test_an_unknown_field_is_an_error_with_a_suggestion(self) -> None:
        with pytest.raises(TypeError, match=r"StepEnd has no field 'setp'. Did you mean 'step'\?"):
            FakeBus().fire(StepEnd, setp=1)

    def test_fit_end_has_the_record_of_an_open_step(self) -> None:
        seen: list[object] = []

        @attrs.define
        class End(Plugin):
            @on(FitEnd)
            def end(self, event: FitEnd) -> None:
                seen.append(event.record and event.record.sealed)

        bus = FakeBus(End())
        bus.fire(FitEnd)
        bus.fire(IterationEnd, step=2)
        bus.fire(FitEnd, step=2, status="failed")

        assert seen == [None, False]

    def test_unbound_port_is_an_error_that_shows_how_to_bind_it(self) -> None:
        @attrs.define
        class Uses(Plugin):
            engine: port_types.RolloutEngine = port()

            @on(FitStart)
            def use(self, event: FitStart) -> None:
                self.engine.pump()

        with pytest.raises(PortError, match=r"'.pump'.* pass a fake"):
            FakeBus(Uses()).fire(FitStart)


class TestCheckPlugin:
    def test_valid_plugin_passes(self) -> None:
        check_plugin(Stopper)
        check_plugin(Stopper, limit=0.5)

    def test_an_option_without_documentation_fails(self) -> None:
        @attrs.define
        class Bare(Plugin):
            """Has an undocumented option."""

            limit: float = 0.2

        with pytest.raises(AssertionError, match="no docstring under the option limit"):
            check_plugin(Bare)

    def test_an_attribute_that_overrides_a_property_passes(self) -> None:
        @attrs.define
        class Slow(Plugin):
            """Take long at the end."""

            patience_s = 9.0

            @on(FitEnd)
            def end(self, event: FitEnd) -> None: ...

        check_plugin(Slow)
        assert Slow().patience_s == 9.0

    def test_an_attribute_without_a_type_fails(self) -> None:
        @attrs.define
        class Untyped(Plugin):
            """Forgets the type of its option, but not of a constant."""

            PREFIX = "my/"
            limit = 0.2

        with pytest.raises(AssertionError, match=r"'limit' has no type, so .* annotate it, limit: float = 0.2"):
            check_plugin(Untyped)

    def test_a_class_without_documentation_fails(self) -> None:
        @attrs.define
        class Silent(Plugin):
            pass

        with pytest.raises(AssertionError, match="Silent has no docstring"):
            check_plugin(Silent)

    def test_class_without_attrs_fails(self) -> None:
        class Forgot(Plugin):
            """Has no decorator."""

        with pytest.raises(AssertionError, match="add @attrs.define"):
            check_plugin(Forgot)

    def test_a_handler_with_a_fault_fails(self) -> None:
        @attrs.define
        class Wrong(Plugin):
            """Has a handler with two arguments."""

            @on(StepEnd)
            def handle(self, event: StepEnd, more: int) -> None: ...

        with pytest.raises(AssertionError, match="does not attach: .*takes one argument"):
            check_plugin(Wrong)

    def test_state_that_is_not_restored_fails(self) -> None:
        @attrs.define
        class Forgetful(Stopper):
            """Saves less than it declares."""

            def state_dict(self) -> dict[str, object]:
                return {}

            def load_state_dict(self, kept: object) -> None: ...

        with pytest.raises(AssertionError, match="state_dict gives"):
            check_plugin(Forgetful)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: random.Random(1),
            random.Random,
            lambda: np.random.default_rng(1),
            lambda: torch.Generator().manual_seed(1),
            lambda: torch.tensor([1.0, float("nan")]),
            lambda: torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
            lambda: {"weights": [torch.ones(2, 2)], "done": torch.tensor(False)},
            lambda: np.array([1.0, float("nan")]),
            lambda: float("nan"),
            lambda: deque([1, 2], maxlen=2),
            lambda: {1: {"$odd": (1, 2)}},
        ],
    )
    def test_state_that_a_checkpoint_supports_passes(self, make: Callable[[], object]) -> None:
        @attrs.define
        class Keeps(Plugin):
            """Keeps something."""

            kept: object = state(factory=make)

        check_plugin(Keeps)

    def test_set_restored_in_another_order_passes(self) -> None:
        def large_once() -> set[int]:
            members = set(range(100))
            members.difference_update({*range(100)} - {1, 32})
            assert [*members] != [*{*[*members]}]
            return members

        @attrs.define
        class Keeps(Plugin):
            """Keeps a set that was large once."""

            kept: set[int] = state(factory=large_once)

            def state_dict(self) -> dict[str, object]:
                return {"kept": self.kept}

            def load_state_dict(self, kept: Mapping[str, Any]) -> None:
                self.kept = kept["kept"]

        check_plugin(Keeps)

    def test_state_that_no_checkpoint_supports_fails(self) -> None:
        @attrs.define
        class Keeps(Plugin):
            """Keeps a path."""

            where: object = state(factory=Path)

        with pytest.raises(AssertionError, match=r"Keeps: the state state/where is a pathlib\..* cannot be saved"):
            check_plugin(Keeps)

    @pytest.mark.parametrize(
        "make", [lambda: random.Random(1), lambda: torch.zeros(2), lambda: np.zeros(2), lambda: [0.0], lambda: {0}]
    )
    def test_state_that_is_restored_with_changes_fails(self, make: Callable[[], Any]) -> None:
        @attrs.define
        class Changes(Plugin):
            """Restores a different state."""

            kept: Any = state(factory=make)

            def load_state_dict(self, kept: Mapping[str, object]) -> None:
                Plugin.load_state_dict(self, kept)
                if isinstance(self.kept, random.Random):
                    self.kept.random()
                elif isinstance(self.kept, set):
                    self.kept = {1}
                else:
                    self.kept[0] = 1.0

        with pytest.raises(AssertionError, match="Changes: the state 'kept' changes over a restart"):
            check_plugin(Changes)


class TestState:
    def test_load_state_dict_restores_the_state_and_refuses_unknown_keys(self) -> None:
        first, second = Stopper(), Stopper()
        first.seen = 3
        second.load_state_dict(first.state_dict())

        assert second.seen == 3
        with pytest.raises(ConfigError, match=r"has no state 'sen'. Did you mean 'seen'\?(.|\n)*'seen' .* is missing"):
            second.load_state_dict({"sen": 1})
        assert second.seen == 3


class TestOrderIndependence:
    @pytest.mark.slow
    def test_quickstart_plugins_do_not_depend_on_their_order(self) -> None:
        check_order_independent(QUICKSTART)

    def test_order_dependence_is_detected(self, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
        source = (
            "import attrs\nfrom hooktrainer import Plugin, Priority, on\nfrom hooktrainer.events import StepEnd\n"
            "from hooktrainer.metrics import Last\n\n"
            "@attrs.define\nclass Writer(Plugin):\n    value: float = 0.0\n\n"
            "    @on(StepEnd, priority=Priority.COLLECT, adds=['metrics.row'])\n"
            "    def add(self, event: StepEnd) -> None:\n        event.record.add({'mine': Last(self.value)})\n"
        )
        (tmp_path / "order_dependent.py").write_text(source)  # type: ignore[operator]
        monkeypatch.syspath_prepend(str(tmp_path))
        writers = [{"use": "order_dependent:Writer", "name": f"w{i}", "value": float(i)} for i in range(2)]

        with pytest.raises(AssertionError, match="the rows differ in step 1, mine: 1.0 and 0.0"):
            check_order_independent(["metric_aggregation", "weight_sync", "log_after_collect", *writers])


class AdapterLearner(FakeLearner):
    """A learner that trains other weights than it publishes."""

    def trainable(self) -> dict[str, object]:
        return {}


class ComputedWeights(dict):
    """Weights with a spec that needs no computation."""

    def spec(self) -> dict[str, object]:
        return {}


class StoredTask(FakeTask):
    """A task of several files."""

    sources = ("a", "b")

    def fingerprint(self) -> dict[str, str]:
        return {"a": "1", "b": "2"}


class EngineWithModule(FakeEngine):
    module = None


class TracedEngine(FakeEngine):
    def use_timeline(self, timeline: port_types.Timeline) -> None:
        self.timeline = timeline


def test_every_port_has_a_fake_that_implements_it() -> None:
    fakes = {
        port_types.CheckpointStore: FakeCheckpointStore(),
        port_types.CharacterTask: FakeTask(),
        port_types.Clock: ManualClock(),
        port_types.Environment: Countdown(),
        port_types.HasEnvironment: Talk(),
        port_types.HasFingerprint: StoredTask(),
        port_types.HasModule: EngineWithModule(),
        port_types.HasSources: StoredTask(),
        port_types.IterationSink: TensorBoardSink(),
        port_types.KLControl: FakeKLControl(),
        port_types.ObservationTokenizer: CharTokenizer("ab"),
        port_types.LatestSamples: FakeLatestSamples(),
        port_types.Learner: FakeLearner(),
        port_types.ModelExport: FakeModelExport(),
        port_types.PromptSource: FakePrompts(),
        port_types.ReplayBuffer: FakeBuffer(),
        port_types.ReloadingHolder: OneSet(),
        port_types.ReversibleHolder: FakeEngine(),
        port_types.RolloutEngine: FakeEngine(),
        port_types.RewindableSink: FakeRewindableSink(),
        port_types.RunState: FakeRunState(),
        port_types.SampleLog: FakeSampleLog(),
        port_types.Sink: FakeSink(),
        port_types.Stateful: FakeLearner(),
        port_types.SupportsClose: Closable(),
        port_types.SupportsFileCheck: SavedDecoder(path="."),
        port_types.SupportsInstallCheck: TensorBoardSink(),
        port_types.SupportsLogprobs: FakeLearner(),
        port_types.SupportsSkipping: FakeLearner(),
        port_types.SupportsTimeline: TracedEngine(),
        port_types.SupportsTrainable: AdapterLearner(),
        port_types.SupportsWorkerReports: FakeBuffer(),
        port_types.Task: FakeTask(),
        port_types.Timeline: FakeTimeline(),
        port_types.Tokenizer: CharTokenizer("ab"),
        port_types.WeightHolder: FakeEngine(),
        port_types.WeightSource: ComputedWeights(),
        port_types.WeightTransport: FakeTransport(),
    }

    for kind, fake in fakes.items():
        assert isinstance(fake, kind), kind
    runtime = {value for value in vars(port_types).values() if getattr(value, "_is_runtime_protocol", False)}
    assert runtime == set(fakes)


def test_test_kit_imports_no_torch() -> None:
    script = "import hooktrainer.testing, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
