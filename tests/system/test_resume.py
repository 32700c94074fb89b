"""A run resumed from a checkpoint gives the results of an uninterrupted run."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file

from hooktrainer import Plugin, build_trainer, load_config, on
from hooktrainer.cli import main
from hooktrainer.errors import CheckpointError
from hooktrainer.events import WeightsSynced
from hooktrainer.ports import Group

SMALL = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 4, max_response_length: 4}
optim: {lr: 1e-3}
trainer: {total_steps: 6, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2, num_warmup_batches: 1}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: staleness, max_off_policy_threshold: 2}
  - {use: validation, every: 2, size: 16}
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: checkpoint, every: 1, keep_last: -1}
"""
RESUME = "run.resume=auto"


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(SMALL)
    return tmp_path


def fit(*overrides: str) -> int:
    return main(["fit", "run.yaml", *overrides])


def prompts_trained_by(*overrides: str) -> list[str]:
    """Fit, and return the prompt of every trained group, in order."""
    trainer = build_trainer(load_config("run.yaml", overrides=overrides))
    learner, trained = trainer.ports.learner, list[str]()
    update = learner.update

    def updated(groups: Sequence[Group]) -> Mapping[str, object]:
        trained.extend(group.prompt.text for group in groups)
        return update(groups)

    learner.update = updated
    trainer.fit()
    return trained


def rows(run: str = "run") -> list[dict[str, float]]:
    lines = Path("runs", run, "metrics.jsonl").read_text().splitlines()
    timed = ("timing", "perf/")
    return [{key: value for key, value in json.loads(line).items() if not key.startswith(timed)} for line in lines]


def weights(step: int, run: str = "run") -> dict[str, torch.Tensor]:
    return load_file(f"runs/{run}/checkpoints/step_{step:08d}/tensors.safetensors")


def delete_checkpoints(*steps: int, run: str = "run") -> None:
    """Delete checkpoints, as if the run had been killed before it saved these steps."""
    for step in steps:
        shutil.rmtree(Path("runs", run, "checkpoints", f"step_{step:08d}"))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_resumed_run_has_the_weights_and_rows_of_an_uninterrupted_run(caplog: pytest.LogCaptureFixture) -> None:
    assert fit("run.name=whole") == 0
    shutil.copytree("runs/whole", "runs/run")
    delete_checkpoints(5, 6)  # killed two steps after the last checkpoint

    assert fit(RESUME) == 0

    assert weights(6).keys() == weights(6, "whole").keys()
    assert all(torch.equal(tensor, weights(6, "whole")[name]) for name, tensor in weights(6).items())
    assert rows() == rows("whole")
    (about_rows,) = [line for line in said(caplog) if "their rows are replaced" in line]
    assert about_rows.startswith("2 steps (5-6) after the checkpoint of step 4 are run again")


def test_resuming_after_every_step_gives_the_rows_and_weights_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    off = "plugins.validation.enabled=false"  # which judges the last step of every part, too
    assert fit("run.name=whole", off) == 0
    for total in range(1, 7):
        assert fit(RESUME, off, f"trainer.total_steps={total}") == 0

    assert rows() == rows("whole")
    assert all(torch.equal(tensor, weights(6, "whole")[name]) for name, tensor in weights(6).items())
    assert not Path("runs/run.1").exists()


def test_resuming_a_completed_run_reports_already_done_and_changes_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    fit("trainer.total_steps=2")
    before = {
        path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file() and path.suffix != ".yaml"
    }
    capsys.readouterr()

    assert fit(RESUME, "trainer.total_steps=2") == 0
    assert fit(RESUME, "trainer.total_steps=1") == 0

    assert "already_done (all 2 steps are done): 0 steps in" in capsys.readouterr().out
    after = {
        path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file() and path.suffix != ".yaml"
    }
    assert after == before


def test_resume_auto_starts_a_new_run_without_a_checkpoint() -> None:
    Path("runs/run").mkdir(parents=True)
    assert fit(RESUME, "trainer.total_steps=1") == 0
    assert [row["step"] for row in rows()] == [1]
    assert [path.name for path in Path("runs").iterdir()] == ["run"]


def test_resume_auto_moves_the_rows_of_a_run_without_checkpoints_to_a_numbered_directory() -> None:
    fit("trainer.total_steps=1")
    shutil.rmtree("runs/run/checkpoints")

    assert fit(RESUME, "trainer.total_steps=1") == 0
    assert [row["step"] for row in rows("run.1")] == [1]


def test_resuming_from_an_older_checkpoint_replaces_later_rows_and_sets_later_checkpoints_aside() -> None:
    fit()
    assert fit("run.resume=runs/run/checkpoints/step_00000002", "trainer.total_steps=4", "seed=0") == 0

    assert [row["step"] for row in rows()] == [1, 2, 3, 4]
    names = {path.name for path in Path("runs/run/checkpoints").iterdir()}
    assert {"step_00000004", "step_00000004.set_aside", "step_00000006.set_aside"} <= names
    assert "step_00000006" not in names


def test_resuming_into_another_run_leaves_the_first_run_unchanged() -> None:
    fit("trainer.total_steps=2")
    assert fit("run.name=other", "run.resume=runs/run", "trainer.total_steps=3") == 0

    assert [row["step"] for row in rows("other")] == [3]
    assert [row["step"] for row in rows()] == [1, 2]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["run.resume=atuo"], "there is nothing at"),
        (["run.resume=atuo"], "Did you mean 'auto'?"),
        ([RESUME, "plugins.checkpoint.enabled=false"], "checkpoint is configured but disabled: set plugins["),
        (["run.resume=5"], "It is off, auto, or the path of a checkpoint"),
    ],
)
def test_invalid_resume_option_exits_2(
    overrides: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(*overrides) == 2
    assert expected in capsys.readouterr().err


class TestRefusedCheckpoint:
    def failed(self, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
        capsys.readouterr()
        assert fit(RESUME, *overrides) == 1
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return said

    @pytest.fixture(autouse=True)
    def one_step(self) -> None:
        fit("trainer.total_steps=1")

    def test_resume_refuses_a_checkpoint_of_another_model_and_names_the_differences(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = self.failed(capsys, "model.width=32")

        assert "the checkpoint is of another model: " in said
        assert "its 'policy.embedding.weight' is (13, 16) float32, here (13, 32) float32" in said

    def test_resume_refuses_a_checkpoint_with_fewer_layers_and_names_the_missing_parameter(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "it has no '" in self.failed(capsys, "model.layers=2")

    def test_resume_refuses_a_changed_seed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "the task, its options or the seed changed" in self.failed(capsys, "seed=1")

    @pytest.mark.parametrize("row", ['{"step": 1, "lo', None])
    def test_resume_names_the_metrics_file_that_cannot_be_read_or_written(
        self, capsys: pytest.CaptureFixture[str], row: str | None
    ) -> None:
        path = Path("runs/run/metrics.jsonl")
        path.unlink()
        if row is None:
            path.mkdir()
        else:
            path.write_text(f"{row}\n")

        said = self.failed(capsys)
        assert "metrics.jsonl" in said
        assert ("line 1, is not a row" in said) == (row is not None)

    def test_resume_names_the_missing_path_of_disk_space(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("run.yaml").write_text(SMALL + "  - {use: disk_space, path: /nope}\n")
        assert "disk_space.path = '/nope'" in self.failed(capsys)

    def test_resume_refuses_a_damaged_only_checkpoint_unless_allow_fresh_is_set(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = Path("runs/run/checkpoints/step_00000001/tensors.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

        assert "no complete checkpoint" in self.failed(capsys)
        assert fit(RESUME, "plugins.checkpoint.allow_fresh=true", "trainer.total_steps=2") == 0
        assert [row["step"] for row in rows()] == [1, 2]


class TestSchedule:
    DECAY = ("optim.lr=1.0", "optim.lr_decay_start=0", "optim.min_lr_ratio=0", "optim.grad_clip=1e-9")

    def lrs(self) -> list[float]:
        return [row["actor/lr"] for row in rows()]

    def test_schedule_resumes_at_the_next_update(self) -> None:
        unbroken = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
        sizes = ("trainer.parameter_sync_step=1", "trainer.train_batch_size=4", "optim.lr_decay=10")
        fit(*self.DECAY, *sizes, "trainer.total_steps=5")
        fit(*self.DECAY, *sizes, "trainer.total_steps=10", RESUME)

        assert self.lrs() == pytest.approx(unbroken)

    def test_schedule_counts_updates_by_default(self) -> None:
        sizes = ("trainer.parameter_sync_step=4", "trainer.train_batch_size=16", "optim.lr_decay=8")
        fit(*self.DECAY, *sizes, "trainer.total_steps=1")
        fit(*self.DECAY, *sizes, "trainer.total_steps=2", RESUME)

        assert self.lrs() == pytest.approx([0.625, 0.125])

    def test_schedule_counts_steps_with_lr_unit_step(self) -> None:
        sizes = ("trainer.parameter_sync_step=4", "trainer.train_batch_size=16", "optim.lr_decay=2")
        unit = "optim.lr_unit=step"
        fit(*self.DECAY, *sizes, unit, "trainer.total_steps=1")
        fit(*self.DECAY, *sizes, unit, "trainer.total_steps=2", RESUME)

        assert self.lrs() == pytest.approx([1.0, 0.5])


class TestEpochs:
    def test_run_saved_at_the_end_of_an_epoch_resumes_with_the_next_epoch(self) -> None:
        data = ("task.size=24", "trainer.total_epochs=2", "trainer.num_warmup_batches=0")  # 3 steps an epoch
        off = "plugins.validation.enabled=false"  # which judges the last step of every part, too
        whole = prompts_trained_by("run.name=whole", *data, off)
        first = prompts_trained_by(*data, off, "trainer.total_steps=3")
        second = prompts_trained_by(*data, off, RESUME)

        assert first + second == whole
        assert sorted(first) == sorted(second)
        assert len(set(second)) == 24
        assert [row["step"] for row in rows()] == [1, 2, 3, 4, 5, 6]
        assert rows() == rows("whole")
        assert all(torch.equal(tensor, weights(6, "whole")[name]) for name, tensor in weights(6).items())

    def test_resuming_after_the_end_of_the_data_reports_already_done(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = ("task.size=20", "trainer.total_steps=null")
        assert fit(*data) == 0
        assert rows()[-1]["training/partial_iterations"] == 1
        capsys.readouterr()

        assert fit(*data, RESUME) == 0
        assert "already_done (the data has ended): 0 steps" in capsys.readouterr().out
        assert fit(*data, RESUME, "trainer.total_epochs=2") == 0
        assert rows()[-1]["ledger/groups/trained"] == 40

    def test_resume_fails_if_the_data_ended_before_total_steps(self, capsys: pytest.CaptureFixture[str]) -> None:
        fit("task.size=24", "trainer.total_steps=3")

        assert fit("task.size=24", "trainer.total_steps=6", RESUME) == 1
        assert "no step could be made after step 3" in capsys.readouterr().err


DRAWS = '''
import random
import attrs
import numpy as np
import torch
from hooktrainer import Plugin, Priority, on, state
from hooktrainer.events import Event, FitStart, StepEnd, StepStart
from hooktrainer.metrics import Last


@attrs.define(kw_only=True)
class Draws(Plugin):
    """Draws in every step."""

    own: np.random.Generator = state(factory=lambda: np.random.default_rng(5))
    for_order: torch.Generator = state(factory=lambda: torch.Generator().manual_seed(6))
    for_noise: torch.Generator = state(factory=lambda: torch.Generator().manual_seed(7))
    order: list[int] = state(factory=lambda: list(range(100)))

    @on(StepStart, adds=["metrics.row"])
    def draw(self, event: StepStart) -> None:
        self.own.shuffle(self.order)
        event.record.add({
            "draws/python": Last(random.random()),
            "draws/numpy": Last(float(np.random.random())),
            "draws/torch": Last(float(torch.rand(1, dtype=torch.float64))),
            "draws/own": Last(float(self.own.random())),
            "draws/shuffled": Last(self.order[0]),
            "draws/permuted": Last(float(torch.randperm(100, generator=self.for_order)[0])),
            "draws/noise": Last(float(torch.rand(1, generator=self.for_noise))),
        })


@attrs.define(kw_only=True)
class Wasteful(Plugin):
    """Draws where it evaluates, which a run that is cut in two does more often."""

    @on(FitStart)
    def get_ready(self, event: FitStart) -> None:
        self.evaluate(event)

    @on(StepEnd, priority=Priority.EVALUATE, every=4)
    def evaluate(self, event: Event) -> None:
        random.random(), np.random.random(5), torch.rand(7)
'''


def test_resume_restores_random_generators_independently_of_evaluation() -> None:
    Path("draws.py").write_text(DRAWS)
    Path("run.yaml").write_text(SMALL + "  - {use: 'draws.py:Wasteful'}\n  - {use: 'draws.py:Draws'}\n")
    fit("run.name=whole")
    fit("trainer.total_steps=3")  # evaluates in step 3, since it is the last
    fit(RESUME)

    for name in ("python", "numpy", "torch", "own", "shuffled", "permuted", "noise"):
        key = f"draws/{name}"
        series = [row[key] for row in rows()]
        assert series == [row[key] for row in rows("whole")]
        assert len(set(series)) > 1


class TestPlugins:
    COUNTER = '''
import attrs
from hooktrainer import Plugin, on, state
from hooktrainer.events import StepEnd


@attrs.define(kw_only=True)
class Counter(Plugin):
    """Counts steps."""

    seen: int = state(0)

    @on(StepEnd)
    def count(self, event: StepEnd) -> None:
        self.seen += 1
'''

    TAKES_ANOTHER = '''

@attrs.define
class Other(Counter):
    """Reads a missing key."""

    def load_state_dict(self, kept):
        self.seen = kept["more"]["seen"]
'''

    @pytest.fixture(autouse=True)
    def with_a_counter(self) -> None:
        Path("counter.py").write_text(self.COUNTER)
        Path("run.yaml").write_text(SMALL + "  - {use: 'counter.py:Counter', name: mine}\n")
        fit("trainer.total_steps=2")

    def test_resume_restores_the_state_of_plugins(self) -> None:
        fit(RESUME, "trainer.total_steps=5")
        state = json.loads(Path("runs/run/checkpoints/step_00000005/state.json").read_text())
        assert state["parts"]["plugins"] == {"step": 5, "state": {"mine": {"seen": 5}}}

    def test_resume_refuses_the_state_of_an_unconfigured_plugin_with_a_suggestion(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fit(RESUME, "plugins.mine.name=mine2", "trainer.total_steps=3") == 1
        assert "'mine', which is not in the configuration. Did you mean 'mine2'?" in capsys.readouterr().err
        assert (
            fit(RESUME, "plugins.mine.enabled=false", "plugins.checkpoint.strict=false", "trainer.total_steps=3") == 0
        )

    def test_resume_refuses_the_state_of_a_disabled_plugin_with_its_address(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fit(RESUME, "plugins.mine.enabled=false", "trainer.total_steps=3") == 1
        err = capsys.readouterr().err
        assert "'mine', which is disabled. Set plugins[" in err
        assert "].enabled to true, or ignore its state with checkpoint's `strict: false`" in err

    def test_plugin_state_that_does_not_load_names_the_plugin_and_the_checkpoint(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("changed.py").write_text(self.COUNTER.replace("seen", "counted"))
        Path("other.py").write_text(self.COUNTER + self.TAKES_ANOTHER)
        for use, cause in (("changed.py:Counter", "has no state 'seen'"), ("other.py:Other", "KeyError('more')")):
            capsys.readouterr()
            assert fit(RESUME, f"plugins.mine.use={use}", "trainer.total_steps=3") == 1
            err = capsys.readouterr().err
            assert "checkpoints/step_00000002: the state of the plugin 'mine' in the checkpoint of step 2" in err
            assert cause in err
            assert ("Traceback" in err) == use.startswith("other")  # somebody's code, found by its line

    def test_resume_logs_that_a_new_plugin_starts_with_its_initial_state(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        Path("run.yaml").write_text(Path("run.yaml").read_text() + "  - {use: 'counter.py:Counter', name: second}\n")
        with caplog.at_level(logging.WARNING):
            assert fit(RESUME, "trainer.total_steps=3") == 0
        assert "the checkpoint has no state of the plugin 'second'; its initial state is used" in said(caplog)


@attrs.define(kw_only=True)
class Syncs(Plugin):
    """Records every sync of a step."""

    seen: list[tuple[int, int]] = attrs.field(factory=list)

    @on(WeightsSynced)
    def note(self, event: WeightsSynced) -> None:
        self.seen.append((event.step, event.version))


def test_resumed_run_publishes_its_version_first_and_keeps_the_dispatch_steps_of_its_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Save at step 10 with groups of two steps in the buffer: groups dispatched in step 9 are trained in step 11."""
    Path("run.yaml").write_text(SMALL + f"  - {{use: '{__file__}:Syncs', name: syncs}}\n")
    ahead = ("trainer.num_warmup_batches=4", "plugins.staleness.max_off_policy_threshold=3")
    fit("trainer.total_steps=10", *ahead)
    trainer = build_trainer(load_config("run.yaml", overrides=[RESUME, "trainer.total_steps=11", *ahead]))
    (syncs,) = [entry.plugin for entry in trainer.bus.plan.plugins if entry.name == "syncs"]
    published: list[int] = []
    real = trainer.ports.engine.flip

    def flip() -> None:
        real()
        published.append(trainer.ports.engine.version)

    monkeypatch.setattr(trainer.ports.engine, "flip", flip)
    trainer.fit()

    assert published == [10, 11]
    assert syncs.seen == [(11, 11)]  # the first publish is no sync of a step
    row, staleness = rows()[-1], "training/off_policy/staleness"
    assert [row["step"], row[f"{staleness}/min"], row[f"{staleness}/max"]] == [11, 3, 3]
    assert row["training/off_policy/evicted_samples"] == 0


def test_restore_refuses_an_invalid_part_of_a_checkpoint_and_names_it() -> None:
    fit("trainer.total_steps=1")
    trainer = build_trainer(load_config("run.yaml", overrides=["run.name=other", "run.resume=runs/run"]))
    state = trainer._state
    from hooktrainer.checkpoint.store import load

    snapshot = load(Path("runs/run")).snapshot
    wrong = attrs.evolve(snapshot, parts={**snapshot.parts, "dispatch": {"requested": 1}})
    with pytest.raises(CheckpointError, match="part 'dispatch' of the checkpoint of step 1 does not fit this run"):
        state.restore(wrong)
    trainer.ports.engine.close()
    for action in trainer._at_end:
        action()


class TestOtherSettings:
    def test_resume_that_is_refused_does_not_overwrite_the_config_of_the_run(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fit("trainer.total_steps=2")
        before = Path("runs/run/config.yaml").read_text()

        assert fit(RESUME, "model.width=32") == 1
        assert "no step was completed, kept in runs/run" in capsys.readouterr().err
        assert fit(RESUME, "trainer.total_steps=1", "optim.lr=1") == 0
        assert "already_done (2 steps are done; total_steps is 1)" in capsys.readouterr().out
        assert Path("runs/run/config.yaml").read_text() == before

    @pytest.mark.parametrize("path", [None, "runs/run", "runs/run/checkpoints/step_00000002"])
    def test_resume_logs_changed_settings(self, path: str | None, caplog: pytest.LogCaptureFixture) -> None:
        fit("trainer.total_steps=2")
        options = [RESUME] if path is None else [f"run.resume={path}", "run.name=other"]
        changed = ["optim.lr=0.5", "plugins.validation.every=3", "model.heads=1", "trainer.total_steps=3"]

        assert fit(*options, *changed) == 0

        expected = "model.heads 2 -> 1, optim.lr 0.001 -> 0.5, plugins.validation.every 2 -> 3"
        assert said(caplog).count(f"the run resumes with changed settings: {expected}") == 1

    def test_resume_logs_no_settings_if_none_changed(self, caplog: pytest.LogCaptureFixture) -> None:
        fit("trainer.total_steps=1")
        fit(RESUME, "trainer.total_steps=2")

        assert not [line for line in said(caplog) if "changed settings" in line]


def test_resume_accepts_the_latest_pointer_and_refuses_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    fit("trainer.total_steps=2")
    fit("run.name=other", "trainer.total_steps=1")

    assert fit("run.name=other", "run.resume=runs/run/metrics.jsonl") == 2
    assert "runs/run/metrics.jsonl; expected off, auto, or" in capsys.readouterr().err
    assert not Path("runs/other.1").exists()
    assert fit("run.name=third", "run.resume=runs/run/checkpoints/latest", "trainer.total_steps=3") == 0
    assert [row["step"] for row in rows("third")] == [3]


ORDER = """
from hooktrainer import Plugin, on, state
from hooktrainer.events import StepEnd
from hooktrainer.metrics import Last
import attrs


@attrs.define(kw_only=True)
class Order(Plugin):
    held: dict[str, int] = state(factory=dict)

    @on(StepEnd, adds=["metrics.row"])
    def turn(self, event: StepEnd) -> None:
        self.held["zyxwvu"[event.step % 6]] = event.step
        if len(self.held) > 3:
            event.record.add({"order/out": Last(self.held.pop(next(iter(self.held))))})
"""


def test_resume_keeps_the_order_of_a_dict_in_plugin_state() -> None:
    Path("order.py").write_text(ORDER)
    Path("run.yaml").write_text(SMALL + "  - {use: 'order.py:Order'}\n")
    fit("run.name=whole")
    fit("trainer.total_steps=4")
    fit(RESUME)

    assert [row.get("order/out") for row in rows()] == [row.get("order/out") for row in rows("whole")]
    assert rows()[-1]["order/out"] == 3.0


def tamper(text: str, how: str) -> str | None:
    lines = text.splitlines(keepends=True)
    match how:
        case "deleted":
            return None
        case "without its first rows":
            del lines[:2]
        case "doubled":
            lines.insert(4, lines[3])
        case "reversed":
            lines.reverse()
        case "nan":
            lines[2] = lines[2].replace('"step": 3', '"step": 3, "odd": NaN', 1)
    return "".join(lines)


@pytest.mark.parametrize("total", [6, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("how", "message", "left"),
    [
        ("deleted", "rows 1-6 are missing", []),
        ("without its first rows", "rows 1-2 are missing", [3, 4, 5, 6]),
        ("doubled", "row 4 occurred more than once", [1, 2, 3, 4, 5, 6]),
        ("reversed", "rows 1-5 followed a later step", [1, 2, 3, 4, 5, 6]),
        ("nan", "row 3 had NaN", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_changed_rows_are_reported_and_repaired_on_resume(
    how: str, message: str, left: list[int], total: int, caplog: pytest.LogCaptureFixture
) -> None:
    fit("plugins.validation.enabled=false")
    path = Path("runs/run/metrics.jsonl")
    text = tamper(path.read_text(), how)
    path.unlink()
    if text is not None:
        path.write_text(text)

    assert fit(RESUME, "plugins.validation.enabled=false", f"trainer.total_steps={total}") == 0

    assert [row["step"] for row in rows()] == [*left, *range(7, total + 1)]
    assert "NaN" not in path.read_text()
    assert message in " ".join(said(caplog))
    if how in ("doubled", "reversed", "nan"):
        assert path.with_name("metrics.jsonl.set_aside").read_text() == text


def test_a_resume_with_fewer_steps_than_are_done_keeps_all_rows() -> None:
    fit("trainer.total_steps=4", "plugins.checkpoint.every=2")
    shutil.rmtree("runs/run/checkpoints/step_00000004")  # as if killed before the last save
    before = Path("runs/run/metrics.jsonl").read_text()

    assert fit(RESUME, "trainer.total_steps=2") == 0
    assert Path("runs/run/metrics.jsonl").read_text() == before
