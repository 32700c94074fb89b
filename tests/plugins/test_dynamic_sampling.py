"""dynamic_sampling on the fake bus, with threads, and in a run."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooktrainer import build_trainer
from hooktrainer.errors import ConfigError
from hooktrainer.events import FitStart, IterationEnd, StepEnd
from hooktrainer.ports import STRATEGIES, Answer, Example, Group, Prompt, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.testing import FakeBuffer, FakeBus, FakePrompts, check_plugin
from hooktrainer_plugins.dynamic_sampling import PREFIX, DynamicSampling

NEEDS = ["metrics.row", "iteration.metrics"]


def answer(score: float) -> Trajectory:
    return Trajectory(
        tokens=np.zeros(2, np.int64), logprobs=np.zeros(2, np.float32), score=score, versions=np.zeros(2, np.int64)
    )


def group(*scores: float) -> Group:
    return Group(
        number=0, stamp=1, prompt=Prompt(Example("?"), np.zeros(1, np.int64)), trajectories=tuple(map(answer, scores))
    )


def test_plugin_passes_check_plugin() -> None:
    check_plugin(DynamicSampling)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0.0, 0.0, 0.0), False),
        ((1.0, 1.0), False),
        ((1.0, 0.0, 0.0), True),
        ((1.0,), False),
        ((0.1,) * 3, False),
        ((1.0, 0.9999999999999999), False),
        ((-3.2e-16, 0.0), False),
        ((0.1 + 0.2, 0.3), False),
        ((sum([0.05] * 20), sum([0.1] * 10), sum([1 / 6] * 6)), False),
        ((1.0, 0.9999), True),
        ((0.0, 1e-4), True),
    ],
)
def test_group_is_kept_if_its_scores_differ(scores: tuple[float, ...], kept: bool) -> None:
    assert DynamicSampling().judge(group(*scores)) is kept


def test_scores_that_differ_by_rounding_are_counted_as_one() -> None:
    plugin = DynamicSampling(buffer=FakeBuffer())
    bus = FakeBus(plugin, provides=NEEDS)
    for scores in ((1.0, 0.9999999999999999), (0.9999999999999999, 1.0), (-3.2e-16, 0.0)):
        plugin.judge(group(*scores))
    bus.fire(IterationEnd, step=1)
    bus.fire(StepEnd, step=1)
    assert bus.row[f"{PREFIX}/dropped_scores"] == {0.0: 1, 1.0: 2}


def test_kept_and_dropped_groups_are_reported_with_the_unfiltered_scores() -> None:
    plugin = DynamicSampling(buffer=FakeBuffer())
    bus = FakeBus(plugin, provides=NEEDS)
    for scores in ((0.0, 0.0, 0.0), (1.0, 1.0), (1.0, 0.0, 0.0), (1.0,)):
        plugin.judge(group(*scores))
    bus.fire(IterationEnd, step=1)
    bus.fire(StepEnd, step=1)
    assert bus.row == {
        f"{PREFIX}/kept": 1,
        f"{PREFIX}/passed": 0,
        f"{PREFIX}/dropped": 3,
        f"{PREFIX}/dropped_share": 0.75,
        f"{PREFIX}/dropped_scores": {0.0: 1, 1.0: 2},
        f"{PREFIX}/unfiltered_score/mean": pytest.approx(4 / 9),
    }
    bus.fire(IterationEnd, step=2)
    bus.fire(StepEnd, step=2)
    assert (bus.row[f"{PREFIX}/kept"], bus.row[f"{PREFIX}/dropped"]) == (0, 0)


def test_groups_are_trained_unfiltered_after_max_dropped(caplog: pytest.LogCaptureFixture) -> None:
    plugin = DynamicSampling(max_dropped=2, buffer=FakeBuffer())
    bus = FakeBus(plugin, provides=NEEDS)
    with caplog.at_level(logging.WARNING, logger="hooktrainer"):
        assert [plugin.judge(group(1.0, 1.0)) for _ in range(4)] == [False, False, True, True]
        assert plugin.judge(group(1.0, 0.0))
    (message,) = caplog.messages
    assert message.startswith(
        "2 groups whose answers all have the same score were dropped since the last update, the maximum"
    )
    bus.fire(IterationEnd, step=1)
    bus.fire(StepEnd, step=1)
    counts = [bus.row[f"{PREFIX}/{key}"] for key in ("kept", "passed", "dropped", "dropped_share")]
    assert counts == [1, 2, 2, 0.4]
    assert plugin.judge(group(1.0, 1.0)) is False, "it counts anew after each update"


def test_state_dict_restores_the_counts_since_the_last_update() -> None:
    unbroken, first = (DynamicSampling(max_dropped=2, buffer=FakeBuffer()) for _ in range(2))
    for plugin in (unbroken, first):
        for scores in ((0.0, 0.0), (1.0, 0.3)):
            plugin.judge(group(*scores))
    second = DynamicSampling(max_dropped=2, buffer=FakeBuffer())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rows = []
    for plugin in (unbroken, second):
        bus = FakeBus(plugin, provides=NEEDS)
        assert [plugin.judge(group(0.1, 0.1)) for _ in range(2)] == [False, True]
        bus.fire(IterationEnd, step=1)
        bus.fire(StepEnd, step=1)
        rows.append(bus.row)
    assert rows[0] == rows[1]
    assert rows[1][f"{PREFIX}/dropped_scores"] == {0.0: 1, 0.1: 1}


def test_rollout_n_of_1_is_refused() -> None:
    config = {
        "task": "sort_digits",
        "model": "decoder",
        "rollout": {"use": "inline", "n": 1},
        "algorithm": {"adv_estimator": "reinforce_plus_plus"},
        "trainer": {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1},
        "plugins": ["weight_sync", "dynamic_sampling"],
    }
    with pytest.raises(ConfigError, match=r"plugins\[1\]: rollout.n is 1: .* every group is dropped"):
        composition_of(config_from_mapping(config))


class TestInTheBuffer:
    def test_dropped_groups_are_replaced_and_never_sampled(self) -> None:
        buffer, dispatcher = filtered()
        dispatcher.request(3)
        scores = iter([(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.0)])

        def refill(lost: object) -> None:
            dispatcher.replace(lost)  # type: ignore[arg-type]
            for claimed in buffer.claim(3, block=False):
                buffer.finish(claimed, [answer(score) for score in next(scores)])

        batch = buffer.sample(3, 1, refill)

        assert [[each.score for each in taken.trajectories] for taken in batch.groups] == [[1, 0], [0, 1], [0.5, 0]]
        assert batch.evicted == ()
        ledger = buffer.ledger
        assert ledger.dispatched == 6
        assert (ledger.dropped["no_signal"].groups, ledger.dropped["no_signal"].trajectories) == (3, 6)
        assert (ledger.sampled.groups, ledger.outstanding, ledger.imbalance) == (3, 0, 0)
        assert buffer.take_metrics()["ledger/tokens/dropped/no_signal"].value == 12

    def test_last_batch_is_short_when_the_data_ends(self) -> None:
        buffer, dispatcher = filtered(prompts=2)
        dispatcher.request(2)

        def refill(lost: object) -> None:
            dispatcher.replace(lost)  # type: ignore[arg-type]
            for claimed in buffer.claim(2, block=False):
                buffer.finish(claimed, [answer(1.0), answer(float(claimed.number))])

        assert len(buffer.sample(2, 1, refill).groups) == 1
        assert buffer.ledger.outstanding == 0

    @settings(deadline=None, max_examples=25)
    @given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 4))
    def test_the_ledger_balances_with_many_threads(self, signals: list[bool], workers: int) -> None:
        buffer, dispatcher = filtered()
        wanted = sum(signals)
        fates = iter([*signals, *[True] * 50])
        lock = threading.Lock()

        def work() -> None:
            while claimed := buffer.claim(1):
                with lock:
                    differs = next(fates)
                buffer.finish(claimed[0], [answer(1.0), answer(0.0 if differs else 1.0)])

        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        dispatcher.request(len(signals))
        batch = buffer.sample(len(signals), 1, dispatcher.replace)
        buffer.close()
        for thread in threads:
            thread.join(30)

        assert len(batch.groups) == len(signals)
        assert all(len({each.score for each in taken.trajectories}) == 2 for taken in batch.groups)
        dropped = buffer.ledger.dropped.get("no_signal")
        assert (dropped.groups if dropped else 0) == len(signals) - wanted
        assert buffer.ledger.imbalance == 0

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_no_replacement_is_outstanding_after_all_dropped_groups_are_replaced(self, name: str) -> None:
        buffer = GroupBuffer(strict=True)
        buffer.set_policy(STRATEGIES.resolve(name)(2))
        buffer.set_filter(lambda finished: finished.number % 3 == 0)
        dispatcher = Dispatcher(FakePrompts(None), buffer, groups_per_step=4)

        def refill(lost: object) -> None:
            dispatcher.replace(lost)  # type: ignore[arg-type]
            for claimed in buffer.claim(64, block=False):
                buffer.finish(claimed, [answer(1.0)])

        dispatcher.request(4)
        for step in range(1, 6):
            for _ in range(2):
                dispatcher.request(2)
                assert len(buffer.sample(2, step, refill).groups) == 2
                dispatcher.request(0)
            buffer.advance(step)

        assert dispatcher.state_dict()["replacements"] == 0
        outstanding = buffer.ledger.outstanding
        buffer.set_policy(STRATEGIES.resolve("drop")(2))
        dispatcher.request(0)
        assert buffer.ledger.outstanding == outstanding


def filtered(prompts: int | None = None) -> tuple[FakeBuffer, Dispatcher]:
    buffer = FakeBuffer()
    FakeBus(DynamicSampling(buffer=buffer), provides=NEEDS).fire(FitStart)
    return buffer, Dispatcher(FakePrompts(prompts), buffer, groups_per_step=1)


@attrs.define
class Unequal:
    """A task in which all answers to half of the prompts have the same score."""

    alphabet = "ab"
    longest_prompt = 1
    size = None

    def train(self, seed: int) -> object:
        while True:
            yield from [Example("a"), Example("b")]

    def heldout(self, size: int) -> object:
        return [Example("a")] * size

    def score(self, example: Example, answers: Sequence[Answer]) -> list[float]:
        return [1.0 if example.prompt == "b" else float(answer.text.count("a") % 2) for answer in answers]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_trained_group_of_a_run_has_differing_scores(name: str, tmp_path: Path) -> None:
    config = {
        "task": {"use": f"{__name__}:Unequal"},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "inline", "n": 8, "max_response_length": 4},
        "optim": {"lr": 1e-3},
        "trainer": {
            "total_steps": 3,
            "train_batch_size": 8,
            "ppo_mini_batch_size": 4,
            "parameter_sync_step": 2,
            "num_warmup_batches": 0 if name == "pace" else 1,
        },
        "run": {"name": "signal", "dir": str(tmp_path)},
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            {"use": "staleness", "max_off_policy_strategy": name, "max_off_policy_threshold": 2},
            "dynamic_sampling",
            {"use": "log_after_collect", "sinks": ["jsonl"]},
        ],
    }
    trainer = build_trainer(config_from_mapping(config))
    trainer.fit()
    rows = [json.loads(line) for line in (tmp_path / "signal" / "metrics.jsonl").read_text().splitlines()]

    assert all(row["critic/advantages/max"] > 0 > row["critic/advantages/min"] for row in rows)
    assert sum(row[f"{PREFIX}/dropped"] for row in rows) >= 8
    last = rows[-1]
    assert last["ledger/groups/trained"] == 24
    assert last["ledger/groups/dropped/no_signal"] == sum(row[f"{PREFIX}/dropped"] for row in rows)
    assert last["ledger/imbalance"] == 0
