"""Engines and their double-buffered weights: own copies, no mixes, no group lost, no thread left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence

import attrs
import pytest
import torch
from torch import Tensor, nn

from hooktrainer import ports
from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.groups import Group, Trajectory
from hooktrainer.models.decoder import Decoder
from hooktrainer.models.policy import full_state
from hooktrainer.rollout.inline import Inline
from hooktrainer.rollout.thread import Thread, ThreadEngine
from hooktrainer.rollout.weights import DoubleBuffer
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.sort_digits import SortDigits
from hooktrainer.tasks.tokenizer import CharTokenizer

TASK = SortDigits(digits=3)
TOKENIZER = CharTokenizer(TASK.alphabet)
OPTIONS = {"n": 2, "max_response_length": 4}


def build() -> nn.Module:
    return Decoder(layers=1, width=8, heads=2).build(vocab_size=TOKENIZER.vocab_size, max_length=8, seed=0)


def groups(count: int) -> list[Group]:
    prompts = TaskPrompts(TASK, TOKENIZER, seed=0).take(count)
    return [Group(number=number, stamp=1, prompt=prompt) for number, prompt in enumerate(prompts)]


def publish(engine: ports.RolloutEngine, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
    engine.stage(full_state(build()) if weights is None else weights, version)
    engine.flip()


class Queue:
    """The part of a replay buffer that engines see: what is claimed, and what became of it."""

    def __init__(self, pending: Sequence[Group] = ()) -> None:
        self.pending = list(pending)
        self.finished: dict[int, Sequence[Trajectory]] = {}
        self.failed: dict[int, BaseException] = {}
        self.closed = False
        self.changed = threading.Condition()

    def dispatch(self, more: Sequence[Group]) -> None:
        with self.changed:
            self.pending += more
            self.changed.notify_all()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        with self.changed:
            if block:
                self.changed.wait_for(lambda: self.pending or self.closed)
            claimed, self.pending = self.pending[:limit], self.pending[limit:]
            return [] if self.closed else claimed

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        with self.changed:
            self.finished[group.number] = trajectories
            self.changed.notify_all()

    def fail(self, group: Group, error: BaseException) -> None:
        with self.changed:
            self.failed[group.number] = error
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.finished) + len(self.failed) >= count, timeout=20)


@attrs.frozen(kw_only=True)
class FailingTask(SortDigits):
    """Cannot score."""

    def score(self, truth: str, answer: str) -> float:
        raise ArithmeticError("no score")


@pytest.fixture(
    params=[Inline(**OPTIONS), Thread(**OPTIONS), Thread(**OPTIONS, workers=2, max_batch_groups=1)], ids=str
)
def engine(request: pytest.FixtureRequest) -> Iterator[ports.RolloutEngine]:
    made = request.param.build(policy=build, tokenizer=TOKENIZER, task=TASK, seed=0)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


class TestEngines:
    def test_they_are_ports(self, engine: ports.RolloutEngine) -> None:
        assert isinstance(engine, ports.RolloutEngine)

    def test_every_claimed_group_is_finished_with_n_answers_on_one_version(self, engine: ports.RolloutEngine) -> None:
        queue = Queue(groups(5))
        publish(engine, 3)
        engine.start(queue)
        engine.pump()
        queue.wait_for(5)

        assert sorted(queue.finished) == [0, 1, 2, 3, 4]
        for answers in queue.finished.values():
            assert len(answers) == 2
            assert {version for answer in answers for version in answer.versions.tolist()} == {3}

    def test_who_works_and_in_which_batches_does_not_change_the_answers(self, engine: ports.RolloutEngine) -> None:
        queue, reference = Queue(groups(5)), Queue(groups(5))
        inline = Inline(**OPTIONS).build(policy=build, tokenizer=TOKENIZER, task=TASK, seed=0)
        for worker, work in ((engine, queue), (inline, reference)):
            publish(worker, 0)
            worker.start(work)
            worker.pump()
            work.wait_for(5)

        texts = [[[answer.text for answer in work.finished[n]] for n in range(5)] for work in (queue, reference)]
        assert texts[0] == texts[1]

    def test_metrics_are_those_since_the_last_call(self, engine: ports.RolloutEngine) -> None:
        queue = Queue(groups(3))
        publish(engine, 0)
        engine.start(queue)
        engine.pump()
        queue.wait_for(3)
        engine.close()

        metrics = engine.take_metrics()
        tokens = sum(len(answer.tokens) for answers in queue.finished.values() for answer in answers)
        assert metrics["rollout/num_tokens"].value == tokens
        assert metrics["rollout/num_trajectories"].value == 6
        assert metrics["timing_s/generate"].value > 0
        assert engine.take_metrics() == {}

    def test_validation_answers_are_greedy_and_on_the_published_weights(self, engine: ports.RolloutEngine) -> None:
        prompts = [group.prompt for group in groups(4)]
        with pytest.raises(RolloutError, match="no weights were published"):
            engine.answer(prompts)
        publish(engine, 5)
        answers = engine.answer(prompts)
        assert {version for answer in answers for version in answer.versions.tolist()} == {5}
        assert [answer.text for answer in answers] == [answer.text for answer in engine.answer(prompts)]

    def test_close_may_come_twice_and_before_start(self, engine: ports.RolloutEngine) -> None:
        engine.close()
        engine.start(Queue())
        engine.close()
        engine.close()

    def test_a_version_in_use_is_untouched_by_a_bad_stage(self, engine: ports.RolloutEngine) -> None:
        publish(engine, 1)
        before = [answer.text for answer in engine.answer([groups(1)[0].prompt])]
        with pytest.raises(SyncError, match=r"'norm\.weight' is missing"):
            engine.stage({}, 2)
        with pytest.raises(SyncError, match="without staged weights"):
            engine.flip()
        engine.unflip()
        assert engine.version == 1
        assert [answer.text for answer in engine.answer([groups(1)[0].prompt])] == before


@pytest.mark.parametrize("options", [Inline(**OPTIONS), Thread(**OPTIONS)], ids=str)
def test_an_error_reaches_the_buffer_for_every_claimed_group_and_the_engine_goes_on(options: Inline | Thread) -> None:
    engine = options.build(policy=build, tokenizer=TOKENIZER, task=FailingTask(digits=3), seed=0)
    publish(engine, 0)
    queue = Queue(groups(3))
    engine.start(queue)
    engine.pump()
    queue.wait_for(3)
    queue.dispatch([attrs.evolve(groups(1)[0], number=9)])
    engine.pump()
    queue.wait_for(4)
    engine.close()

    assert sorted(queue.failed) == [0, 1, 2, 9]
    assert {repr(error) for error in queue.failed.values()} == {"ArithmeticError('no score')"}
    assert queue.finished == {}


def test_an_interrupt_on_the_loops_thread_fails_the_groups_and_goes_on_up() -> None:
    class Interrupted(Queue):
        def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
            if group.number == 1:
                raise KeyboardInterrupt
            super().finish(group, trajectories)

    engine = Inline(**OPTIONS).build(policy=build, tokenizer=TOKENIZER, task=TASK, seed=0)
    publish(engine, 0)
    queue = Interrupted(groups(3))
    engine.start(queue)
    with pytest.raises(KeyboardInterrupt):
        engine.pump()
    assert (sorted(queue.finished), sorted(queue.failed)) == ([0], [1, 2])


def test_a_dead_worker_wakes_the_loop_and_tells_it() -> None:
    class Broken(Queue):
        def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
            raise LookupError("no buffer")

    engine = Thread(**OPTIONS).build(policy=build, tokenizer=TOKENIZER, task=TASK, seed=0)
    queue = Broken()
    engine.start(queue)
    with queue.changed:
        assert queue.changed.wait_for(lambda: queue.closed, timeout=20)
    with pytest.raises(RolloutError, match="a rollout worker died: LookupError"):
        engine.pump()
    engine.close()


class Three(nn.Module):
    """Three parameters that all hold the number of their version."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.full((64,), -1.0)) for _ in range(3))


def versioned(version: int) -> dict[str, Tensor]:
    return {name: torch.full((64,), float(version)) for name in "abc"}


class TestDoubleBuffer:
    def test_readers_never_see_a_mix_while_weights_flip(self) -> None:
        weights = DoubleBuffer(Three)
        weights.stage(versioned(0), 0)
        weights.flip()
        done = threading.Event()
        seen: list[set[float]] = []
        versions: set[int] = set()

        def read() -> None:
            while not done.is_set():
                with weights.reading() as (module, version):
                    values = torch.cat([tensor.clone() for tensor in full_state(module).values()]).tolist()
                versions.add(version)
                if set(values) != {float(version)}:
                    seen.append(set(values) | {version})

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for version in range(1, 300):
            weights.stage(versioned(version), version)
            weights.flip()
        done.set()
        for reader in readers:
            reader.join()

        assert seen == []
        assert len(versions) > 1

    def test_a_reader_keeps_what_it_began_with_and_a_flip_does_not_wait(self) -> None:
        weights = DoubleBuffer(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, version):
            publish_to(weights, 2)
            assert weights.version == 2
            assert (version, module.a[0].item()) == (1, 1.0)
            with weights.reading() as (newer, _):
                assert newer.a[0].item() == 2.0

    def test_staging_over_a_readers_buffer_waits_for_it(self) -> None:
        weights = DoubleBuffer(Three)
        publish_to(weights, 1)
        events: list[str] = []
        with weights.reading() as (module, _):
            publish_to(weights, 2)

            def stage() -> None:
                weights.stage(versioned(3), 3)
                events.append("staged")

            stager = threading.Thread(target=stage)
            stager.start()
            stager.join(timeout=0.05)
            assert module.a[0].item() == 1.0
            events.append("read")
        stager.join()
        assert events == ["read", "staged"]

    def test_unflip_undoes_one_flip_and_only_one(self) -> None:
        weights = DoubleBuffer(Three)
        publish_to(weights, 1)
        publish_to(weights, 2)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)
        weights.stage(versioned(3), 3)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)

    def test_the_copy_shares_no_memory_with_the_learner(self) -> None:
        learner, weights = Three(), DoubleBuffer(Three)
        with torch.no_grad():
            learner.a.fill_(2.0)
        weights.stage(full_state(learner), 1)
        with torch.no_grad():
            learner.a.add_(1.0)
        weights.flip()

        with weights.reading() as (module, _):
            assert module.a[0].item() == 2.0
            theirs, ours = full_state(module), full_state(learner)
            assert not {t.data_ptr() for t in theirs.values()} & {t.data_ptr() for t in ours.values()}
            assert not any(tensor.requires_grad for tensor in module.parameters())

    def test_a_policy_that_gives_its_one_module_is_refused(self) -> None:
        module = Three()
        with pytest.raises(ValueError, match="share memory"):
            DoubleBuffer(lambda: module)

    def test_staging_the_engines_own_tensors_is_refused(self) -> None:
        module = Three()
        made = iter([Three(), module])
        with pytest.raises(SyncError, match="'a' shares memory"):
            DoubleBuffer(lambda: next(made)).stage(full_state(module), 1)


def publish_to(weights: DoubleBuffer, version: int) -> None:
    weights.stage(versioned(version), version)
    weights.flip()


def value_of(weights: DoubleBuffer) -> tuple[int, float]:
    with weights.reading() as (module, version):
        return version, module.a[0].item()


class Odd(nn.Module):
    """Everything that a state may hold: frozen, tied, empty, whole-numbered, boolean, in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 3))
        self.tied = self.w
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.brief = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(data=False))
        self.register_buffer("mean", torch.zeros(1), persistent=False)


class TestStates:
    def filled(self) -> Odd:
        source = Odd()
        with torch.no_grad():
            source.w.copy_(torch.arange(6.0).view(2, 3))
            source.frozen.fill_(3.0)
            source.brief.fill_(1.5)
            source.count.fill_(2**53 + 1)  # no float64 holds it
            source.flag.fill_(value=True)
            source.mean.fill_(0.25)
        return source

    def test_every_kind_of_tensor_arrives_again_and_again(self) -> None:
        source, weights = self.filled(), DoubleBuffer(Odd)
        for version in range(3):
            weights.stage(full_state(source), version)
            weights.flip()
            with weights.reading() as (module, _):
                received = full_state(module)
                assert received.keys() == full_state(source).keys()
                for name, tensor in full_state(source).items():
                    assert torch.equal(received[name], tensor), name
                assert module.tied is module.w

    def test_weights_that_are_nan_are_delivered_too(self) -> None:
        source, weights = self.filled(), DoubleBuffer(Odd)
        with torch.no_grad():
            source.w.fill_(torch.nan)
        weights.stage(full_state(source), 0)
        weights.flip()
        with weights.reading() as (module, _):
            assert bool(module.w.isnan().all())

    def test_weights_may_lie_in_memory_in_any_order(self) -> None:
        weights = DoubleBuffer(Odd)
        values = dict(full_state(self.filled()))
        values["w"] = values["tied"] = torch.arange(6.0).view(3, 2).t()
        weights.stage(values, 0)
        weights.flip()
        with weights.reading() as (module, _):
            assert module.w.tolist() == [[0, 2, 4], [1, 3, 5]]

    @pytest.mark.parametrize(
        ("name", "tensor", "message"),
        [
            ("w", torch.zeros(3, 2), r"'w' has shape \(3, 2\), the engine's \(2, 3\)"),
            ("count", torch.tensor(1.0), "'count' is torch.float32, the engine's torch.int64"),
            ("count", torch.tensor(1, dtype=torch.int32), "'count' is torch.int32, the engine's torch.int64"),
            ("more", torch.zeros(1), "'more' is unknown to the engine"),
            ("w", torch.ones(2, 3), "'w' and 'tied' are one tensor in the engine, but differ"),
        ],
    )
    def test_what_does_not_fit_is_named(self, name: str, tensor: Tensor, message: str) -> None:
        weights = DoubleBuffer(Odd)
        with pytest.raises(SyncError, match=message):
            weights.stage({**full_state(self.filled()), name: tensor}, 0)
        assert weights.version == -1

    def test_a_cast_is_rounded_and_its_error_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        weights = DoubleBuffer(lambda: nn.ParameterDict({"p": torch.zeros(3, dtype=torch.bfloat16)}))
        with caplog.at_level(logging.WARNING):
            for version in range(2):
                weights.stage({"p": torch.tensor([1.0, 1.00390625, 1.01171875])}, version)
                weights.flip()
        with weights.reading() as (module, _):
            assert module["p"].tolist() == [1.0, 1.0, 1.015625]
        assert weights.cast_error == 0.00390625
        assert [record.getMessage() for record in caplog.records] == [
            "1 of 1 tensors are cast to the engine's dtype; largest error 0.00390625"
        ]


def test_a_batch_in_flight_does_not_hold_up_a_sync() -> None:
    """The task blocks the worker inside a batch on version 0; version 1 is published all the same."""
    inside, go_on = threading.Event(), threading.Event()

    @attrs.frozen(kw_only=True)
    class Slow(SortDigits):
        def score(self, truth: str, answer: str) -> float:
            inside.set()
            assert go_on.wait(20)
            return super().score(truth, answer)

    engine = Thread(**OPTIONS).build(policy=build, tokenizer=TOKENIZER, task=Slow(digits=3), seed=0)
    assert isinstance(engine, ThreadEngine)
    publish(engine, 0)
    queue = Queue(groups(1))
    engine.start(queue)
    assert inside.wait(20)
    publish(engine, 1)
    assert engine.version == 1
    go_on.set()
    queue.wait_for(1)
    engine.close()
    assert set(queue.finished[0][0].versions.tolist()) == {0}
