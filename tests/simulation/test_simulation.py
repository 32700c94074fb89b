"""The simulator: virtual time, distributions, schedules, and the command that compares settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.config_yaml import BASE, written
from hooktrainer.cli import main
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import ConfigError
from hooktrainer.metrics import Counts
from hooktrainer.ports import RunInfo
from hooktrainer.simulation import (
    Constant,
    Distribution,
    LogNormal,
    Outcome,
    Recorded,
    Schedule,
    Simulation,
    VirtualClock,
    parse_distribution,
)
from hooktrainer.sinks.jsonl import JsonlSink
from hooktrainer_plugins.staleness import Staleness

STALE = "  - {use: staleness, max_off_policy_threshold: 3}\n"
PACED = "  - {use: staleness, max_off_policy_threshold: 3, max_off_policy_strategy: pace}\n"
SYNCED = BASE.replace("inline", "thread") + "plugins:\n  - weight_sync\n"
SMALL = TrainerConfig(
    total_steps=20, train_batch_size=8, ppo_mini_batch_size=4, parameter_sync_step=2, num_warmup_batches=2
)


class TestVirtualClock:
    @given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5])))
    def test_callbacks_run_by_time_and_ties_in_order_of_scheduling(self, delays: list[float]) -> None:
        clock, ran = VirtualClock(), []
        for place, delay in enumerate(delays):
            clock.schedule(delay, lambda place=place: ran.append((clock.now(), place)))

        clock.advance(1.0)
        assert ran == sorted((delay, place) for place, delay in enumerate(delays) if delay <= 1)
        assert clock.now() == 1.0

        while clock.run_next():
            pass
        assert ran == sorted((delay, place) for place, delay in enumerate(delays))

    def test_callback_scheduled_during_advance_runs_in_the_same_advance(self) -> None:
        clock, ran = VirtualClock(), []
        clock.schedule(1, lambda: clock.schedule(1, lambda: ran.append(clock.now())))

        clock.advance(2)

        assert ran == [2]

    def test_run_next_waits_no_longer_than_the_limit(self) -> None:
        clock = VirtualClock()
        clock.schedule(3, lambda: None)

        assert [clock.run_next(within=2), clock.now()] == [False, 0]
        assert [clock.run_next(within=3), clock.now()] == [True, 3]

    @pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
    def test_negative_or_non_finite_times_are_refused(self, seconds: float) -> None:
        for act in (VirtualClock().advance, lambda seconds: VirtualClock().schedule(seconds, lambda: None)):
            with pytest.raises(ValueError, match="finite number of seconds of at least 0"):
                act(seconds)


class TestDistributions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [("2", Constant(2)), ("constant:2.5", Constant(2.5)), ("lognormal:4:1", LogNormal(4, 1))],
    )
    def test_distributions_are_parsed_from_text(self, text: str, expected: Distribution) -> None:
        assert parse_distribution(text, "generate") == expected

    def test_mean_of_a_lognormal_does_not_depend_on_sigma(self) -> None:
        for sigma in (0.0, 0.5, 1.0):
            rng = np.random.default_rng(0)
            assert np.mean([LogNormal(4, sigma).draw(rng) for _ in range(50_000)]) == pytest.approx(4, rel=0.02)

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("fast", "could not convert string to float: 'fast'; expected SECONDS, constant:SECONDS"),
            ("lognormal:4", "--train lognormal:4; expected"),
            ("lognormal:0:1", "'mean' must be above 0 and at most 1e+09: 0"),
            ("lognormal:1e308:1", "'mean' must be above 0 and at most 1e+09: 1e+308"),
            ("lognormal:4:50", "'sigma' must be from 0 to 5: 50"),
            ("constant:-1", "'seconds' must be from 0 to 1e+09: -1"),
            ("nan", "'seconds' must be from 0 to 1e+09: nan"),
            ("uniform:1:2", "--train uniform:1:2; expected"),
            ("recorded:nowhere", "metrics.jsonl cannot be read"),
        ],
    )
    def test_invalid_distribution_is_refused_with_the_valid_ones(self, text: str, why: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_distribution(text, "train")
        assert why in str(caught.value)

    def test_recorded_times_are_drawn_with_their_frequency(self, tmp_path: Path) -> None:
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        sink.write(1, {"timing_s/group": Counts({0.5: 2, 3.0: 1}).value, "timing_s/update_actor": 8.0})
        sink.write(2, {"timing_s/group": Counts({0.5: 1}).value, "timing_s/weight_sync": 0.25})
        sink.write(3, {"timing_s/update_actor": 3.0, "training/partial_iterations": 1})
        written(tmp_path, "trainer: {parameter_sync_step: 4}", "config.yaml")

        found = {kind: parse_distribution(f"recorded:{tmp_path}", kind) for kind in ("generate", "train", "sync")}

        assert found["generate"] == Recorded((0.5, 3.0), (0.75, 1.0))
        assert found["train"] == Recorded((2.0, 3.0), (0.8, 1.0))
        assert found["sync"] == Recorded((0.25,), (1.0,))
        rng = np.random.default_rng(0)
        assert np.mean([found["generate"].draw(rng) == 0.5 for _ in range(4000)]) == pytest.approx(0.75, abs=0.02)

    def test_recorded_times_are_read_behind_a_byte_order_mark(self, tmp_path: Path) -> None:
        rows = "\N{ZERO WIDTH NO-BREAK SPACE}" + '{"step": 1, "timing_s/weight_sync": 0.25}\n'
        written(tmp_path, rows, "metrics.jsonl")
        assert parse_distribution(f"recorded:{tmp_path}", "sync") == Recorded((0.25,), (1.0,))

    def test_recorded_run_without_times_is_refused(self, tmp_path: Path) -> None:
        written(tmp_path, '{"step": 1, "timing_s/update_actor": 1.0}\n', "metrics.jsonl")

        with pytest.raises(ConfigError, match="no row has timing_s/group/<seconds>; the run needs"):
            parse_distribution(f"recorded:{tmp_path}", "generate")
        with pytest.raises(ConfigError, match=r"config.yaml has no trainer.parameter_sync_step"):
            parse_distribution(f"recorded:{tmp_path}", "train")


def simulated(schedule: Schedule, steps: int = 20) -> tuple[Simulation, Outcome]:
    simulation = Simulation(
        config=attrs.evolve(SMALL, total_steps=steps),
        plugins=[Staleness(max_off_policy_threshold=2)],
        schedule=schedule,
        groups_at_once=6,
    )
    return simulation, simulation.run()


class TestSchedule:
    def test_runs_depend_on_the_seed(self) -> None:
        runs = [simulated(Schedule(generate=LogNormal(4, 1), train=Constant(1), seed=seed)) for seed in (1, 1, 2)]

        first, second, other = [(outcome, simulation.learner.batches) for simulation, outcome in runs]
        assert first == second
        assert first[0] != other[0]
        assert first[1] != other[1]

    def test_a_saved_schedule_replays_the_run(self, tmp_path: Path) -> None:
        first, outcome = simulated(Schedule(generate=LogNormal(4, 1), train=LogNormal(1, 0.5), sync=Constant(0.5)))
        first.schedule.save(tmp_path / "schedule.jsonl")

        second, again = simulated(Schedule.load(tmp_path / "schedule.jsonl"))

        assert (second.learner.batches, again) == (first.learner.batches, outcome)
        with pytest.raises(ConfigError, match="the schedule has no time for"):
            simulated(Schedule.load(tmp_path / "schedule.jsonl"), steps=40)

    def test_generation_time_of_a_group_does_not_depend_on_the_order_of_draws(self) -> None:
        orders = [range(5), reversed(range(5))]
        drawn = [{n: Schedule(generate=LogNormal(4, 1)).seconds("generate", n) for n in order} for order in orders]

        assert drawn[0] == drawn[1]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def simulate(text: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["simulate", str(written(tmp_path, text)), *arguments])
        return code, *capsys.readouterr()

    return simulate


class TestCommand:
    def test_simulate_compares_thresholds_and_workers_in_a_table(self, run) -> None:
        code, out, err = run(SYNCED + STALE, "rollout.slots=4", "--thresholds", "2,4", "--workers", "1,3", "--steps=9")

        assert (code, err) == (0, "")
        first, _, titles, *rows = out.splitlines()
        assert first == "9 steps, seed 0; generate lognormal:4:1, train 1, sync 0"
        assert titles.split()[:4] == ["T", "workers", "at", "once"]
        assert [row.split()[:3] for row in rows[:4]] == [[t, w, a] for t in "24" for w, a in (("1", "2"), ("3", "6"))]
        assert len({len(row) for row in (titles, *rows[:4])}) == 1
        assert "S: staleness of trained groups, 1 is fresh" in out

    def test_every_column_of_the_table_is_explained_below_it(self, run) -> None:
        _, out, _ = run(SYNCED + STALE, "--steps=2")

        _, _, titles, _, _, *legend = out.splitlines()
        explained = re.findall(r"(?:^|[.;,] )([^.;:]+):", " ".join(legend))
        names = {name for text in explained for name in text.split(", ")}
        assert set(re.split(r"\s\s+", titles.strip().replace("workers at", "workers  at"))) <= names

    def test_simulate_prints_json(self, run) -> None:
        code, out, _ = run(SYNCED + PACED, "--generate=8", "--train=0.5", "--sync=0.5", "--steps=50", "--json")

        assert code == 0
        found = json.loads(out)
        (row,) = found.pop("rows")
        assert found == {"generate": "8", "train": "0.5", "sync": "0.5", "steps": 50, "seed": 0}
        assert (row["threshold"], row["workers"], row["groups_at_once"], row["reason"]) == (3, 1, 128, None)
        assert row["overlap_limit"] == 2.5
        assert row["drop_rate"] == row["wasted"] == 0
        assert row["age_mean"] <= 2
        assert row["of_limit"] == pytest.approx(row["overlap_limit"] / row["seconds_per_step"])

    def test_inline_engine_generates_only_while_the_loop_waits(self, run) -> None:
        _, out, _ = run(
            BASE + "plugins:\n  - weight_sync\n" + STALE, "--generate=1", "rollout.slots=8", "--steps=20", "--json"
        )

        (row,) = json.loads(out)["rows"]
        assert row["staleness_max"] == 1
        assert row["seconds_per_step"] == row["overlap_limit"] == 12  # 4 updates of 1 s, and 32 groups by fours
        assert (row["engine_idle"], row["learner_idle"]) == pytest.approx((1 / 3, 2 / 3))

    def test_repeated_setting_is_simulated_once(self, run) -> None:
        _, out, _ = run(SYNCED + STALE, "--thresholds=2,2", "--workers=1,1", "--steps=2", "--json")

        assert len(json.loads(out)["rows"]) == 1

    def test_simulate_exits_1_if_no_setting_could_run(self, run) -> None:
        code, out, _ = run(SYNCED + STALE, "--thresholds=1", "trainer.num_warmup_batches=4", "--steps=2")

        assert code == 1
        assert "num_warmup_batches = 4 is more than" in out

    def test_no_group_is_dropped_without_a_staleness_strategy(self, run) -> None:
        code, out, _ = run(SYNCED, "trainer.num_warmup_batches=40", "--steps=50", "--json")

        (row,) = json.loads(out)["rows"]
        assert (code, row["threshold"], row["drop_rate"], row["staleness_max"] > 9) == (0, None, 0, True)

    def test_row_of_a_failed_setting_has_the_reason(self, run) -> None:
        code, out, err = run(
            SYNCED + STALE,
            *("--generate=4", "--workers=1,2", "--thresholds=1,3", "--steps=4"),
            *("rollout.slots=8", "replay.sample_timeout_s=6", "trainer.num_warmup_batches=4"),
        )

        assert (code, err) == (0, "")
        refused, _, starved, fine = (line.split(maxsplit=3) for line in out.splitlines()[3:7])
        assert refused[3].startswith("plugins[1]: num_warmup_batches = 4 is more than")
        assert starved[:3] == ["3", "1", "4"]
        assert starved[3].startswith("starved for 6 s: 4 of 8 groups sampleable in step 1, 0 evicted, strategy Drop(")
        assert (fine[:3], len(fine[3].split())) == (["3", "2", "8"], 12)

    @pytest.mark.parametrize(
        ("text", "arguments", "why"),
        [
            (SYNCED + STALE, ["--generate=slow"], "could not convert string to float: 'slow'; expected SECONDS"),
            (SYNCED + STALE, ["plugins.staleness.max_off_policy_threshold=0"], "max_off_policy_threshold"),
            (SYNCED, ["--thresholds=2"], "--thresholds needs a plugin that makes 'replay.policy'"),
            (SYNCED + STALE, ["trainer.total_stpes=2"], "Did you mean"),
        ],
    )
    def test_invalid_configuration_exits_2(self, run, text: str, arguments: list[str], why: str) -> None:
        code, out, err = run(text, *arguments)

        assert (code, out) == (2, "")
        assert why in err

    @pytest.mark.parametrize("argument", ["--thresholds=0", "--workers=1,x", "--steps=0", "--seed=-1"])
    def test_invalid_argument_exits_2(self, run, capsys: pytest.CaptureFixture[str], argument: str) -> None:
        with pytest.raises(SystemExit) as caught:
            run(SYNCED + STALE, argument)
        assert caught.value.code == 2
        assert "expected an integer of at least" in capsys.readouterr().err

    def test_simulate_imports_no_torch(self, tmp_path: Path) -> None:
        code = (
            "import sys; from hooktrainer.cli import main; code = main(sys.argv[1:]); "
            "assert 'torch' not in sys.modules; sys.exit(code)"
        )
        path = str(written(tmp_path, SYNCED + STALE))
        subprocess.run([sys.executable, "-c", code, "simulate", path, "--steps=2"], check=True, capture_output=True)
