"""Weight sync from a learner to real engines: they use the trained weights or keep the old ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.rollouts import LENGTH, TASK, Queue, generator_config, groups, versions_of
from helpers.stale_heads import StaleHead, StaleInWorkers, policy
from hooktrainer import Plugin, build_trainer, on
from hooktrainer.errors import ConfigError, RolloutError, SyncError
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.models.policy import full_state
from hooktrainer.models.scoring import Scoring, text_logprobs
from hooktrainer.plugin import port
from hooktrainer.ports import Canary, Learner, RolloutEngine
from hooktrainer.rollout.engine import Engine
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.run.registry import KINDS
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
from hooktrainer.weight_sync.same_host import SameHostTransport

TOKENS = np.array([4, 2, 3, 5, 2])
ENGINES: Mapping[str, SamplingOptions] = {
    "inline": InlineOptions(n=2, max_response_length=LENGTH),
    "thread": ThreadOptions(n=2, max_response_length=LENGTH),
    "process": ProcessOptions(n=2, max_response_length=LENGTH, workers=2),
}


@pytest.fixture
def build() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def built(name: str, model: Callable[[], nn.Module] = policy) -> Engine:
        made.append(ENGINES[name].build(generator_config(model, TASK, 0)))
        return made[-1]

    StaleHead.kept = None
    yield built
    for engine in made:
        engine.close()


def canary_of(learner: nn.Module) -> Canary:
    return Canary(tokens=TOKENS, logprobs=text_logprobs(learner, TOKENS, Scoring()), atol=1e-4)


def sync(learner: nn.Module, version: int, *engines: Engine, transport: SameHostTransport | None = None) -> None:
    (transport or SameHostTransport()).publish(full_state(learner), version, engines, canary=canary_of(learner))


def train(learner: nn.Module, names: str = "") -> None:
    """Change all weights whose name contains this text."""
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            if names in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))


def held(engine: Engine) -> dict[str, int]:
    return {name: checksum(tensor) for name, tensor in full_state(engine._generator.weights.in_use).items()}


def sent(learner: nn.Module) -> dict[str, int]:
    return {name: checksum(tensor) for name, tensor in full_state(learner).items()}


class TestCanary:
    @pytest.mark.parametrize("name", ["inline", "thread", "process"])
    @pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
    def test_engines_score_like_the_learner_after_a_sync(
        self, build: Callable[..., Engine], name: str, tied: bool
    ) -> None:
        learner, engine = policy(tied=tied), build(name, partial(policy, tied=tied))
        for version in range(3):
            sync(learner, version, engine)
            assert (engine.version, held(engine)) == (version, sent(learner))
            train(learner)

    @pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
    def test_engine_that_keeps_its_old_head_fails_the_canary(self, build: Callable[..., Engine], tied: bool) -> None:
        learner, good = policy(tied=tied), build("thread", partial(policy, tied=tied))
        engine = build("thread", partial(policy, StaleHead, tied=tied))
        sync(learner, 0, good, engine)
        before = held(engine)
        train(learner, "embedding" if tied else "head")

        with pytest.raises(SyncError, match=r"engine 1 \(ThreadEngine\) does not use the weights that it confirmed"):
            sync(learner, 1, good, engine)

        for each in (good, engine):
            assert (each.version, held(each)) == (0, before)
            queue = Queue(groups(3))
            each.start(queue)  # and it is not paused
            queue.wait_for(3)
            assert {version for answers in queue.finished.values() for version in versions_of(answers)} == {0}

    @pytest.mark.slow
    def test_worker_that_keeps_its_old_head_fails_the_canary(self, build: Callable[..., Engine]) -> None:
        learner, engine = policy(), build("process", partial(policy, StaleInWorkers))
        sync(learner, 0, engine)
        queue = Queue(groups(8))
        engine.start(queue)
        queue.wait_for(8)
        train(learner, "head")
        with pytest.raises(SyncError, match="does not use the weights that it confirmed"):
            sync(learner, 1, engine)
        assert engine.version == 0
        queue.dispatch([attrs.evolve(group, number=100 + group.number) for group in groups(4)])
        queue.wait_for(12)
        assert versions_of(queue.finished[100]) == {0}

    def test_the_learner_scores_without_dropout_and_restores_its_mode(self) -> None:
        class Dropped(type(policy())):
            def project(self, states: Tensor) -> Tensor:
                return super().project(nn.functional.dropout(states, training=self.training))

        learner = policy(Dropped).train()
        learner.norm.eval()
        np.testing.assert_allclose(
            text_logprobs(learner, TOKENS, Scoring()),
            text_logprobs(policy(), TOKENS, Scoring()),
            atol=1e-6,
        )
        assert learner.training
        assert not learner.norm.training

    def test_canary_scores_use_the_sampling_temperature(self, build: Callable[..., Engine]) -> None:
        learner = policy()
        engine = attrs.evolve(ENGINES["inline"], temperature=0.5).build(generator_config(policy))
        publish = partial(SameHostTransport().publish, full_state(learner), engines=[engine])
        scores = text_logprobs(learner, TOKENS, Scoring(0.5))
        publish(version=0, canary=Canary(tokens=TOKENS, logprobs=scores, atol=1e-4))
        with pytest.raises(SyncError, match="does not use the weights that it confirmed"):
            publish(version=1, canary=canary_of(learner))


class TestWorkers:
    @pytest.mark.slow
    def test_worker_that_becomes_ready_late_uses_the_published_weights(self, build: Callable[..., Engine]) -> None:
        engine = build("process")
        sync(policy(), 0, engine)
        queue = Queue(groups(4))
        engine.start(queue)
        for version in range(1, 20):  # while the workers get ready, and after
            sync(policy(seed=version), version, engine)
        queue.wait_for(4)
        assert queue.failed == {}

    @pytest.mark.slow
    def test_a_paused_worker_starts_no_request_until_resume(self, build: Callable[..., Engine]) -> None:
        engine = build("process")
        sync(policy(), 0, engine)
        queue = Queue(groups(4))
        engine.start(queue)
        queue.wait_for(4)
        engine.pause()
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(4)])
        queue.wait_until(lambda: len(queue.claimed) > 4)
        engine.stage(full_state(policy(seed=1)), 1)
        engine.flip()
        assert len(queue.finished) == 4
        engine.resume()
        queue.wait_for(8)
        assert versions_of(queue.finished[10]) == {1}

    @pytest.mark.slow
    def test_a_worker_that_cannot_score_fails_the_sync(self, build: Callable[..., Engine]) -> None:
        engine = build("process")
        sync(policy(), 0, engine)
        engine.start(queue := Queue(groups(8)))
        queue.wait_for(8)
        unknown = Canary(tokens=np.array([10**6, 1]), logprobs=np.zeros(1, np.float32), atol=1.0)
        with pytest.raises(RolloutError, match=r"rollout worker \d \(pid \d+\) could not score the canary") as caught:
            engine._pool.score(unknown.tokens)
        assert isinstance(caught.value.__cause__, IndexError)
        with pytest.raises(SyncError, match="version 1 was not published: index out of range"):
            SameHostTransport().publish(full_state(policy(seed=1)), 1, [engine], canary=unknown)
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(2)])
        queue.wait_for(10)
        assert versions_of(queue.finished[10]) == {0}


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(1000)) for _ in range(3))


def versioned(version: int) -> dict[str, Tensor]:
    return {name: torch.full((1000,), float(version)) for name in "abc"}


class Slow(DoubleBuffer):
    """Waits for a millisecond after each bucket."""

    def __init__(self) -> None:
        modules = ModulePair(Three)
        super().__init__([full_state(module) for module in modules.modules], modules)
        self.modules = modules

    def stage(self, weights: Mapping[str, Tensor], version: int) -> Mapping[str, int]:
        held = super().stage(weights, version)
        time.sleep(0.001)
        return held


def test_reader_sees_one_version_between_buckets() -> None:
    """Copy 1000 times during syncs of three parameters with value k at version k, one bucket each."""
    engine, transport, copies = Slow(), SameHostTransport(), []
    transport.publish(versioned(0), 0, [engine], bucket_bytes=1)
    done = threading.Event()

    def read() -> None:
        for _ in range(1000):
            with engine.modules.reading() as (module, version):
                copied = [float(number) for own in (module.a, module.b, module.c) for number in own.aminmax()]
            copies.append((version, set(copied)))
        done.set()

    reader = threading.Thread(target=read)
    reader.start()
    version = 0
    while not done.is_set():
        version += 1
        metrics = transport.publish(versioned(version), version, [engine], bucket_bytes=1)
        assert metrics["weight_sync/buckets"].value == 3
    reader.join()
    assert len(copies) == 1000
    assert [(version, values) for version, values in copies if values != {float(version)}] == []


class Whole(nn.Module):
    """A parameter, a frozen one, and a buffer that moves: all of it belongs to the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.f = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.register_buffer("m", torch.zeros(1))


def test_buffers_and_frozen_parameters_are_synced_and_module_structure_is_kept() -> None:
    learner, modules, transport = Whole(), ModulePair(Whole), SameHostTransport()
    engine = DoubleBuffer([full_state(module) for module in modules.modules], modules)
    with torch.no_grad():
        learner.f.fill_(3.0)
        learner.m.fill_(0.25)
    keys = [(list(own.state_dict()), [*dict(own.named_parameters())]) for own in modules.modules]
    for version in range(3):
        with torch.no_grad():
            learner.w.fill_(float(version))
        transport.publish(full_state(learner), version, [engine])
        with modules.reading() as (module, _):
            assert (module.m.item(), module.f.item(), module.w.item()) == (0.25, 3.0, float(version))
            assert {name: checksum(value) for name, value in module.state_dict().items()} == {
                name: checksum(value) for name, value in learner.state_dict().items()
            }
    assert [(list(own.state_dict()), [*dict(own.named_parameters())]) for own in modules.modules] == keys


def test_engines_hold_the_staged_weights_while_training_continues() -> None:
    learner, modules = Whole(), ModulePair(Whole)
    engine = DoubleBuffer([full_state(module) for module in modules.modules], modules)
    with torch.no_grad():
        learner.w.fill_(2.0)
        engine.stage(full_state(learner), 1)
        learner.w.add_(1.0)
    engine.flip()
    assert modules.in_use.w.item() == 2.0
    assert modules.in_use.w.data_ptr() != learner.w.data_ptr()


def test_answers_that_span_a_sync_have_the_first_and_last_version(build: Callable[..., Engine]) -> None:
    engine = attrs.evolve(ENGINES["inline"], on_sync="continue").build(generator_config(policy))
    learner = policy()
    sync(learner, 1, engine)

    class Syncs(Queue):
        def claim(self, limit: int, block: bool = True) -> object:
            if self.claimed and engine.version == 1:  # asked again after the first token
                train(learner)
                sync(learner, 2, engine)
            return super().claim(limit, block)

    queue = Syncs(groups(6))
    engine.start(queue)
    engine.pump()
    engine.close()
    spans = {(int(answer.versions[0]), int(answer.versions[-1])) for own in queue.finished.values() for answer in own}
    assert (1, 2) in spans
    assert queue.failed == {}


def run_of(directory: Path, plugins: list[object], rollout: Mapping[str, object]) -> object:
    mapping = {
        "task": {"use": "sort_digits", "digits": 3},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"n": 2, "max_response_length": 4, **rollout},
        "algorithm": {"kl_coeff": 0.1},
        "trainer": {"total_steps": 3, "train_batch_size": 4, "ppo_mini_batch_size": 2, "parameter_sync_step": 2},
        "optim": {"lr": 0.01},
        "run": {"dir": str(directory / "runs")},
        "plugins": plugins,
    }
    return build_trainer(config_from_mapping(mapping))


@attrs.define(kw_only=True)
class Comparison(Plugin):
    """Records after each sync whether the engine holds the weights of the trainer."""

    learner: Learner = port()
    engine: RolloutEngine = port()
    first: list[int] = attrs.field(factory=list)
    synced: list[int] = attrs.field(factory=list)

    @on(FitStart, priority=350)
    def start(self, event: FitStart) -> None:
        self._compare()
        self.first.append(self.engine.version)

    @on(WeightsSynced)
    def compare(self, event: WeightsSynced) -> None:
        self._compare()
        self.synced.append(event.version)

    def _compare(self) -> None:
        assert held(self.engine) == {name: checksum(value) for name, value in self.learner.weights().items()}


PLUGIN_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "staleness": {"max_off_policy_threshold": 2},
    "validation": {"every": 1, "size": 4},
    "log_after_collect": {"sinks": ["jsonl"]},
    "dynamic_sampling": {"max_dropped": 8},
    "kl_guard": {"limit": 100.0},
    "disk_space": {"keep_free_gb": 0.0},
}
PLUGINS: Mapping[str, object] = {
    name: {"use": name, **PLUGIN_OPTIONS.get(name, {})} for name in sorted(KINDS["plugins"]) if name != "weight_sync"
}
NEEDED_BY = {  # plugins that read what it makes
    "metric_aggregation": ("log_after_collect", "kl_guard", "early_stopping"),
    "validation": ("early_stopping",),
}


class TestRuns:
    @pytest.mark.parametrize(
        ("removed", "rollout"),
        [
            ((), {"use": "inline"}),
            ((), {"use": "thread", "on_sync": "continue"}),
            ((), {"use": "thread", "batching": "group"}),
            pytest.param(tuple(PLUGINS), {"use": "thread"}, id="all-thread"),
            *(((name, *NEEDED_BY.get(name, ())), {"use": "inline"}) for name in PLUGINS),
        ],
        ids=lambda value: "-".join(map(str, value.values() if isinstance(value, Mapping) else value[:1])) or "none",
    )
    def test_weights_are_synced_with_any_other_plugins_and_options(
        self, tmp_path: Path, removed: tuple[str, ...], rollout: Mapping[str, object]
    ) -> None:
        """Remove each optional plugin in turn."""
        plugins = [entry for name, entry in PLUGINS.items() if name not in removed]
        trainer = run_of(tmp_path, [*plugins, "weight_sync", {"use": f"{__file__}:Comparison"}], rollout)
        trainer.fit()
        comparison = next(own.plugin for own in trainer.bus.plan.plugins if "Comparison" in type(own.plugin).__name__)
        assert (comparison.first, comparison.synced) == ([0], [1, 2, 3])

    @pytest.mark.parametrize("rollout", ["inline", "thread", "process"])
    def test_a_run_without_weight_sync_does_not_start(self, tmp_path: Path, rollout: str) -> None:
        with pytest.raises(ConfigError, match="WeightsSynced"):
            run_of(tmp_path, ["metric_aggregation"], {"use": rollout})

    def test_a_failed_sync_ends_the_run_with_the_last_published_version(self, tmp_path: Path) -> None:
        trainer = run_of(
            tmp_path,
            ["weight_sync", {"use": f"{__file__}:Comparison"}, {"use": f"{__file__}:Saboteur"}, *PLUGINS.values()],
            {"use": "inline"},
        )
        with pytest.raises(SyncError, match=r"version 2 was not published: .*'head\.weight' has the checksum"):
            trainer.fit()
        assert trainer.ports.engine.version == trainer.ports.buffer.version == 1
        comparison = next(own.plugin for own in trainer.bus.plan.plugins if "Comparison" in type(own.plugin).__name__)
        assert comparison.synced == [1]
        (path,) = tmp_path.glob("runs/*/metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["step"] for row in rows] == [1]
        assert rows[0]["weight_sync/canary_error"] <= 1e-4
        assert rows[0]["weight_sync/buckets"] == 1


@attrs.define(kw_only=True)
class Saboteur(Plugin):
    """A plugin that flips a bit of the head on its way to the engine in step 2."""

    engine: RolloutEngine = port()

    @on(StepEnd, priority=250)
    def flip_bits(self, event: StepEnd) -> None:
        if event.step != 2:
            return
        stage = self.engine.stage

        def broken(weights: Mapping[str, Tensor], version: int) -> Mapping[str, int]:
            copied = {name: tensor.clone() for name, tensor in weights.items()}
            copied["head.weight"].view(torch.int32)[0, 0] ^= 1
            return stage(copied, version)

        self.engine.stage = broken
