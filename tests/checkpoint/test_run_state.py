"""Save and restore a run: each prompt is trained once, whether trained, in flight or not yet dispatched."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer import Plugin, Trainer, state
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.checkpoint.run_state import LiveState, RunPlace
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import CheckpointError, RolloutError
from hooktrainer.events import StepEnd
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import Example, FailureReason, Group, Prompt, Strategy, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.staleness import Requeue, Wait
from hooktrainer.tasks.generated import GeneratedTask
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.sort_digits import SortDigits
from hooktrainer.testing import FakeBuffer, FakeEngine, FakeLearner, FakePrompts, FakeTransport, fake_ports
from hooktrainer_plugins.checkpoint import Checkpoint
from hooktrainer_plugins.metric_aggregation import MetricAggregation
from hooktrainer_plugins.staleness import Staleness
from hooktrainer_plugins.weight_sync import WeightSync

CONFIG = TrainerConfig(total_steps=None, train_batch_size=1, ppo_mini_batch_size=1)


def prompts(*numbers: int) -> list[Prompt]:
    return [Prompt(Example(str(number)), np.array([number])) for number in numbers]


def answer(length: int = 2) -> Trajectory:
    tokens = np.arange(length)
    return Trajectory(
        tokens=tokens, logprobs=tokens.astype(np.float32), score=0.5, text="x", versions=np.zeros(length, np.int64)
    )


def texts(groups: object) -> list[str]:
    return [group.prompt.text for group in groups]


class Parts:
    """A buffer, its dispatcher and their state, without a loop."""

    def __init__(self, buffer: FakeBuffer | None = None, count: int | None = 10) -> None:
        self.buffer = buffer or FakeBuffer()
        self.learner = FakeLearner()
        self.ports = fake_ports(buffer=self.buffer, learner=self.learner, prompts=FakePrompts(count))
        self.dispatcher = Dispatcher(self.ports.prompts, self.buffer, groups_per_step=1)
        self.state = LiveState((), self.ports, self.dispatcher, RunPlace(), CONFIG)

    def train(self, size: int, step: int, engine: FakeEngine | None = None) -> list[str]:
        def refill(lost: object) -> None:
            self.dispatcher.replace(lost)
            if engine is not None:
                engine.pump()

        batch = self.buffer.sample(size, step, refill)
        self.learner.update(batch.groups)
        return texts(batch.groups)

    def rest(self) -> list[str]:
        """Train the remaining prompts, one group and one version per step."""
        engine = FakeEngine()
        engine.start(self.buffer)
        trained: list[str] = []
        for step in itertools.count(self.buffer.version + 1):
            self.dispatcher.request(1)
            if not (found := self.train(1, step, engine)):
                return trained
            trained += found
            self.buffer.advance(step)
        raise AssertionError


def midway(policy: Strategy) -> Parts:
    """Return parts with prompts 0-3 trained, 4-6 buffered, 7 in flight, 8 and 9 not dispatched."""
    parts = Parts()
    parts.buffer.set_policy(policy)
    parts.dispatcher.request(8)
    for group in parts.buffer.claim(7):
        parts.buffer.finish(group, [answer()])
    assert parts.train(4, 1) == ["0", "1", "2", "3"]
    parts.buffer.advance(1)
    assert texts(parts.buffer.claim(1)) == ["7"]
    return parts


@pytest.mark.parametrize("keep_finished", [True, False])
@pytest.mark.parametrize("policy", [Wait(2), Requeue(2), Requeue(1)], ids=["wait", "requeue", "requeue stale groups"])
def test_restored_run_trains_each_untrained_prompt_once(policy: Strategy, keep_finished: bool) -> None:
    snapshot = midway(policy).state.capture(1)
    again = Parts()
    again.buffer.set_policy(policy)
    again.state.restore(snapshot, keep_finished=keep_finished)

    ledger = again.buffer.ledger
    assert again.buffer.take_metrics()["replay/finished"].value == (3 if keep_finished else 0)
    assert ledger.dropped["restart"].groups == (1 if keep_finished else 4)
    trained = again.rest()

    assert Counter(trained) == Counter("456789")
    assert ledger.sampled.groups == 10
    assert (ledger.outstanding, ledger.imbalance) == (0, 0)
    if keep_finished:  # with their stamps: before the others, or too old and dispatched again
        first = {Wait(2): ["4", "5", "6"], Requeue(2): ["4"], Requeue(1): ["7"]}[policy]
        assert trained[: len(first)] == first
    assert ("stale" in ledger.dropped) == policy.requeues


def test_restored_groups_keep_dispatch_step_number_and_answers() -> None:
    parts = midway(Strategy())
    before = parts.state.capture(1)
    again = Parts()
    again.state.restore(before)
    groups = again.buffer.sample(3, 3, lambda _: None).groups

    assert [(group.number, group.stamp, group.staleness(3)) for group in groups] == [(4, 1, 3), (5, 1, 3), (6, 1, 3)]
    for found in (trajectory for group in groups for trajectory in group.trajectories):
        assert found.tokens.tolist() == answer().tokens.tolist()
        assert found.logprobs.dtype == np.float32
        assert (found.score, found.text, found.truncated, found.span) == (0.5, "x", False, 1)


def test_restored_group_has_the_staleness_of_an_uninterrupted_run() -> None:
    parts = Parts()
    parts.buffer.advance(8)
    parts.dispatcher.request(1)  # p = 9
    for group in parts.buffer.claim(1):
        parts.buffer.finish(group, [answer()])
    parts.buffer.advance(10)
    again = Parts()
    again.state.restore(parts.state.capture(10))

    assert again.buffer.version == 10
    (group,) = again.buffer.sample(1, 11, lambda _: None).groups
    assert group.staleness(11) == 3


def test_captured_buffer_state_is_unaffected_by_later_changes() -> None:
    parts = midway(Requeue(1))
    state = parts.buffer.state_dict()
    before = encode(1, {"buffer": state})
    parts.buffer.advance(2)
    parts.train(0, 3)  # evicts
    for group in parts.buffer.claim(9, block=False):
        parts.buffer.finish(group, [answer()])
    parts.dispatcher.request(1)
    parts.buffer.take_metrics()

    after = encode(1, {"buffer": state})
    assert after.parts == before.parts
    assert after.arrays.keys() == before.arrays.keys()
    assert all(np.array_equal(array, before.arrays[name]) for name, array in after.arrays.items())


def test_failed_groups_not_yet_replaced_are_dispatched_again_after_a_restore() -> None:
    parts = Parts(FakeBuffer(ReplayOptions(max_failed_groups=5)), count=3)
    parts.dispatcher.request(3)
    first, second, third = parts.buffer.claim(3)
    parts.buffer.fail(first, RolloutError("died"), "worker_died")
    parts.buffer.fail(second, RolloutError("raised"))
    parts.buffer.finish(third, [answer()])
    assert parts.buffer.trainable(1)
    again = Parts(FakeBuffer(ReplayOptions(max_failed_groups=5)), count=3)
    again.state.restore(parts.state.capture(0))

    assert sorted(again.rest()) == ["0", "2"]
    assert again.buffer.take_metrics()["replay/failed/worker_died"].value == 1


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ReplayOptions(max_failed_groups=0), "error"),
        (ReplayOptions(max_lost_groups=0), "worker_died"),
        (ReplayOptions(max_lost_groups=0), "timeout"),
    ],
)
def test_prompt_whose_failure_exceeds_the_limit_before_the_save_is_dispatched_again_after_a_restore(
    limits: ReplayOptions, reason: FailureReason
) -> None:
    parts = Parts(FakeBuffer(limits), count=6)
    parts.buffer.set_policy(Wait(2))
    parts.dispatcher.request(4)
    groups = parts.buffer.claim(4)
    for group in groups[:2]:
        parts.buffer.finish(group, [answer()])
    assert parts.train(2, 1) == ["0", "1"]
    for group in groups[2:]:
        parts.buffer.fail(group, RolloutError("boom"), reason)
    parts.buffer.advance(1)
    assert parts.buffer.trainable(2)  # so that the error is raised, though the data may have ended
    again = Parts(FakeBuffer(limits), count=6)
    again.buffer.set_policy(Wait(2))
    again.state.restore(parts.state.capture(1))

    assert sorted(again.rest()) == ["2", "3", "4", "5"]
    assert (again.buffer.ledger.outstanding, again.buffer.ledger.imbalance) == (0, 0)
    with pytest.raises(RolloutError, match="is exceeded"):
        parts.train(1, 2)


def test_buffer_is_trainable_while_the_last_prompt_waits_for_a_retry() -> None:
    buffer = FakeBuffer()
    buffer.dispatch(prompts(1))
    (group,) = buffer.claim(1)
    buffer.fail(group, RolloutError("died"), "worker_died")

    assert buffer.trainable(1)


def test_restore_is_refused_after_the_first_dispatch() -> None:
    parts = Parts()
    snapshot = parts.state.capture(0)
    parts.dispatcher.request(1)
    with pytest.raises(CheckpointError, match="1 groups were dispatched already"):
        parts.state.restore(snapshot)


def test_restored_groups_above_a_lower_capacity_are_dispatched_later() -> None:
    parts = midway(Strategy())
    again = Parts(FakeBuffer(ReplayOptions(capacity=2)))
    again.state.restore(parts.state.capture(1))
    again.dispatcher.request(1)

    assert sorted(again.rest()) == list("456789")


def test_capture_names_a_component_without_state_dict() -> None:
    class Bare:
        def update(self, groups: object) -> dict[str, object]:
            return {}

    parts = Parts()
    state = LiveState((), fake_ports(learner=Bare()), parts.dispatcher, RunPlace(), CONFIG)
    with pytest.raises(CheckpointError, match="the learner cannot be saved: Bare has no state_dict"):
        state.capture(0)


def test_restore_learner_restores_only_the_learner() -> None:
    parts = Parts()
    parts.learner.update(())
    snapshot = parts.state.capture(0)
    parts.learner.update(())
    parts.dispatcher.request(1)

    parts.state.restore_learner(snapshot, step=3)
    assert parts.learner.updates == 1
    assert parts.learner.steps[-1] == 3


def test_second_capture_in_one_step_has_the_current_state_of_the_learner() -> None:
    parts = Parts()
    first = parts.state.capture_learner(1)
    parts.learner.update(())
    second = parts.state.capture_learner(1)
    for kept, updates in ((first, 0), (second, 1)):
        parts.state.restore_learner(kept, step=2)
        assert parts.learner.updates == updates


def test_logged_step_is_read_by_the_next_process(tmp_path: Path) -> None:
    def run(directory: Path | None) -> LiveState:
        parts = Parts()
        return LiveState((), parts.ports, parts.dispatcher, RunPlace(directory=directory), CONFIG)

    for step in (3, 12):
        run(tmp_path).record_logged_step(step)
        assert run(tmp_path).logged_step == step
    (tmp_path / ".last_row").write_text("half a nu")
    assert run(tmp_path).logged_step == 0
    for nowhere in (None, tmp_path / "gone"):
        run(nowhere).record_logged_step(1)
        assert run(nowhere).logged_step == 0
    assert not (tmp_path / "gone").exists()


def test_capture_learner_does_not_replace_the_latest_snapshot() -> None:
    parts = Parts()
    latest = parts.state.capture(0)
    parts.learner.update(())
    kept = parts.state.capture_learner(1)
    parts.learner.update(())
    parts.state.restore_learner(kept, step=2)

    assert parts.state.latest is latest
    assert (parts.learner.updates, kept.step, kept.parts.keys()) == (1, 1, {"learner"})


def test_buffer_accepts_no_group_during_a_capture() -> None:
    @attrs.define
    class Counts(Plugin):
        """Counts the groups that the buffer accepts."""

        seen: int = state(0)

        def state_dict(self) -> dict[str, Any]:
            late.start()
            late.join(0.2)  # as long as it may take, if nobody kept it out
            return super().state_dict()

    parts = Parts(GroupBuffer())
    plugin = Counts()

    def count(_: Group) -> bool:
        plugin.seen += 1
        return True

    parts.buffer.set_filter(count)
    parts.buffer.dispatch(parts.ports.prompts.take(1))
    (group,) = parts.buffer.claim(1)
    late = threading.Thread(target=parts.buffer.finish, args=(group, [answer()]))
    live = LiveState([PlacedPlugin.of(plugin, 0)], parts.ports, parts.dispatcher, RunPlace(), CONFIG)
    snapshot = live.capture(0)
    late.join()

    (kept,) = decode(snapshot, "plugins").values()
    assert kept["seen"] == decode(snapshot, "buffer")["ledger"]["finished"]["groups"] == 0
    assert plugin.seen == 1


class TestTaskPrompts:
    def made(
        self, *, size: int | None = 7, epochs: int = 3, seed: int = 0, task: GeneratedTask | None = None
    ) -> TaskPrompts:
        task = task or SortDigits(digits=3, size=size)
        return TaskPrompts(task, CharTokenizer(task.alphabet), seed=seed, total_epochs=epochs)

    @given(st.integers(0, 21), st.integers(1, 5))
    def test_restored_prompts_continue_at_the_same_position(self, taken: int, size: int) -> None:
        whole = [prompt.text for prompt in self.made().take(21)]
        first, again = self.made(), self.made()
        for start in range(0, taken, size):
            first.take(min(size, taken - start))
        again.load_state_dict(decode(encode(0, {"p": first.state_dict()}), "p"))

        assert again.exhausted == (taken == 21)
        assert again.state_dict() == first.state_dict()
        assert [prompt.text for prompt in again.take(30)] == whole[taken:]

    def test_restored_prompts_continue_after_total_epochs_is_raised(self) -> None:
        first, again = self.made(epochs=1), self.made(epochs=2)
        first.take(7)
        again.load_state_dict(first.state_dict())

        assert not again.exhausted
        assert [prompt.text for prompt in again.take(9)] == [prompt.text for prompt in self.made().take(14)][7:]

    @pytest.mark.parametrize("other", [{"seed": 1}, {"task": SortDigits(digits=4, size=7)}, {"size": 2}])
    def test_state_of_prompts_from_other_data_is_refused(self, other: dict[str, object]) -> None:
        first = self.made()
        first.take(4)
        with pytest.raises(CheckpointError, match="prompt 4 of epoch 1 was"):
            self.made(**other).load_state_dict(first.state_dict())


def trainer(directory: Path, learner: FakeLearner, *, steps: int | None, **options: object) -> Trainer:
    config = TrainerConfig(
        total_steps=steps, train_batch_size=2, ppo_mini_batch_size=1, parameter_sync_step=2, num_warmup_batches=2
    )
    place = RunPlace(directory=directory, resume="auto")
    extra = options.pop("extra", [])
    plugins = [MetricAggregation(), WeightSync(), Staleness(), Checkpoint(every=1), *extra]
    return Trainer(plugins, fake_ports(learner=learner, **options), config, place)


def trained(learner: FakeLearner) -> list[str]:
    return [text for batch in learner.batches for text in texts(batch)]


def test_resumed_run_does_not_repeat_the_warm_up(tmp_path: Path) -> None:
    first, second = FakeLearner(), FakeLearner()
    transport = FakeTransport()
    buffer = FakeBuffer()
    trainer(tmp_path, first, steps=10).fit()
    result = trainer(tmp_path, second, steps=11, transport=transport, buffer=buffer).fit()

    assert transport.published == [10, 11]
    assert trained(first) + trained(second) == [str(number) for number in range(22)]
    assert buffer.ledger.outstanding == 2
    assert (result.status, result.step) == ("completed", 11)


def test_run_that_fails_and_resumes_repeatedly_trains_every_prompt_once(tmp_path: Path) -> None:
    import attrs

    from hooktrainer import Plugin, Priority, on

    @attrs.define
    class Breaks(Plugin):
        """Fails once, before or after the checkpoint of a step is captured."""

        at: int
        band: Priority = Priority.COLLECT

        @on(StepEnd, priority=Priority.COLLECT)
        def collect(self, event: StepEnd) -> None:
            self.fail(event, Priority.COLLECT)

        @on(StepEnd, priority=Priority.EVALUATE)
        def evaluate(self, event: StepEnd) -> None:
            self.fail(event, Priority.EVALUATE)

        @on(StepEnd, priority=Priority.CLEANUP)
        def clean_up(self, event: StepEnd) -> None:
            self.fail(event, Priority.CLEANUP)

        def fail(self, event: StepEnd, band: Priority) -> None:
            if (event.step, band) == (self.at, self.band):
                raise ValueError("broken")

    lineage: list[str] = []
    for step, band in [(1, Priority.COLLECT), (2, Priority.EVALUATE), (3, Priority.CLEANUP), (5, Priority.COLLECT)]:
        learner = FakeLearner()
        with pytest.raises(ValueError, match="broken"):
            trainer(tmp_path, learner, steps=None, prompts=FakePrompts(14), extra=[Breaks(step, band)]).fit()
        complete = step if band > Priority.COLLECT else step - 1
        lineage += trained(learner)[: 2 * complete - len(lineage)]
    learner = FakeLearner()
    result = trainer(tmp_path, learner, steps=None, prompts=FakePrompts(14)).fit()
    lineage += trained(learner)

    assert lineage == [str(number) for number in range(14)]
    assert (result.status, result.step) == ("completed", 7)
    assert trainer(tmp_path, FakeLearner(), steps=None, prompts=FakePrompts(14)).fit().status == "already_done"


ACTIONS = ["dispatch", "claim", "finish", "die", "raise", "sample", "advance", "restart"]


@given(st.lists(st.sampled_from(ACTIONS), max_size=40), st.sampled_from([0, 1, 64]))
def test_restore_neither_loses_nor_repeats_a_prompt_after_any_sequence_of_actions(
    actions: list[str], budget: int
) -> None:
    def made(count: int | None) -> Parts:
        return Parts(FakeBuffer(ReplayOptions(max_failed_groups=0, max_lost_groups=budget)), count)

    parts, running, done, broken = made(None), list[Group](), Counter[str](), False
    parts.buffer.set_policy(Requeue(1))
    for action in actions:
        if action == "dispatch":
            parts.dispatcher.request(2)
        elif action == "claim":
            running += parts.buffer.claim(2, block=False)
        elif action == "finish" and running:
            parts.buffer.finish(running.pop(0), [answer()])
        elif action == "die" and running:
            parts.buffer.fail(running.pop(), RolloutError("died"), "worker_died")
            broken |= parts.buffer.take_metrics()["replay/failed/worker_died"].value > budget
        elif action == "raise" and running:
            parts.buffer.fail(running.pop(), RolloutError("raised"))
            broken = True
        elif action == "sample" and not broken and parts.buffer.take_metrics()["replay/finished"].value:
            engine = FakeEngine()
            engine.start(parts.buffer)
            done.update(parts.train(1, parts.buffer.version + 1, engine))
        elif action == "advance":
            parts.buffer.advance(parts.buffer.version + 1)
        elif action == "restart":
            again = made(None)
            again.buffer.set_policy(Requeue(1))
            again.state.restore(parts.state.capture(parts.buffer.version))
            parts, running, broken = again, [], False
    sent = parts.ports.prompts.state_dict()["next"]
    again = made(sent)
    again.buffer.set_policy(Requeue(1))
    again.state.restore(parts.state.capture(parts.buffer.version))

    done.update(again.rest())
    assert done == Counter(str(number) for number in range(sent))
    assert again.buffer.ledger.imbalance == 0
