"""Runs that leave their model in a folder."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from helpers.huggingface_models import save_model
from hooktrainer import Plugin, Priority, build_trainer, on
from hooktrainer._util.folders import replace_folder, restore_folder
from hooktrainer.errors import ConfigError, RunError
from hooktrainer.events import FitStart, IterationEnd, StepEnd
from hooktrainer.models.options import CharacterModel, DecoderOptions
from hooktrainer.models.saved_decoder import SavedDecoder
from hooktrainer.run.loading import config_from_mapping


@attrs.frozen(kw_only=True)
class Unsaved(CharacterModel):
    """A model of a user without `save`."""

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> torch.nn.Module:
        return DecoderOptions(layers=1, width=16, heads=2).build(
            vocab_size=vocab_size, max_length=max_length, seed=seed
        )


@attrs.frozen(kw_only=True)
class Failing(Unsaved):
    """A model whose `save` fails in the middle."""

    def save(self, module: torch.nn.Module, tokenizer: Any, folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")


@attrs.define(kw_only=True)
class FailAt(Plugin):
    """Raise an error in a step: during the updates, or before the sync at the end of the step."""

    step: int = 3
    where: str = "iteration"

    @on(IterationEnd)
    def fail_in_iteration(self, event: IterationEnd) -> None:
        if (event.step, self.where) == (self.step, "iteration"):
            raise ValueError("a fault of the user")

    @on(StepEnd, priority=Priority.PREPARE)
    def fail_at_end(self, event: StepEnd) -> None:
        if (event.step, self.where) == (self.step, "end"):
            raise KeyboardInterrupt

    @on(FitStart, priority=Priority.CLEANUP)
    def fail_at_start(self, _event: FitStart) -> None:
        if self.where == "start":
            raise ValueError("a fault of the user")


def config(tmp_path: Path, *plugins: Any, **sections: Any) -> Any:
    data: dict[str, Any] = {
        "task": {"use": "sort_digits", "digits": 3},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "inline", "n": 4, "max_response_length": 4},
        "optim": {"lr": 1e-2},
        "trainer": {"total_steps": 4, "train_batch_size": 8, "ppo_mini_batch_size": 4, "parameter_sync_step": 2},
        "run": {"dir": str(tmp_path / "runs"), "name": "run"},
        "plugins": ["metric_aggregation", "weight_sync", *plugins],
    }
    return config_from_mapping(data | sections)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    saved = SavedDecoder(path=folder)
    return saved.build(vocab_size=13, max_length=saved.max_length, seed=0).state_dict()


def differs(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_run_leaves_the_weights_of_the_learner(tmp_path: Path, engine: str) -> None:
    trainer = build_trainer(config(tmp_path, "export", rollout={"use": engine, "n": 4, "max_response_length": 4}))
    trainer.fit()

    assert not differs(weights_of(tmp_path / "runs/run/model"), dict(trainer.ports.learner.weights()))
    names = sorted(path.name for path in (tmp_path / "runs/run").iterdir())
    assert names == ["config.yaml", "model", "plan.txt", "run.json"]


@pytest.mark.parametrize("where", ["iteration", "end"])
def test_failed_run_leaves_the_weights_of_its_last_complete_step(tmp_path: Path, where: str) -> None:
    fail = {"use": f"{__name__}:FailAt", "where": where}
    trainer = build_trainer(config(tmp_path, {"use": "export", "every": 2}, fail))
    with pytest.raises((ValueError, KeyboardInterrupt)):
        trainer.fit()

    directory = tmp_path / "runs/run"
    last = weights_of(directory / "model")
    assert not differs(last, weights_of(directory / "model_step_2"))  # step 3 was not complete
    assert differs(last, dict(trainer.ports.learner.weights()))


@pytest.mark.parametrize("fail", [{"step": 1}, {"step": 1, "where": "end"}, {"where": "start"}])
def test_run_without_a_complete_step_leaves_no_model(tmp_path: Path, fail: dict[str, Any]) -> None:
    trainer = build_trainer(config(tmp_path, "export", {"use": f"{__name__}:FailAt", **fail}))
    with pytest.raises((ValueError, KeyboardInterrupt)):
        trainer.fit()

    assert not (tmp_path / "runs/run/model").exists()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, []),
        ({"every": 1}, [3, 4]),
        ({"every": 2}, [2, 4]),
        ({"every": 3}, [3]),
        ({"every": 1, "keep_last": 1}, [4]),
        ({"every": 1, "keep_last": -1}, [1, 2, 3, 4]),
    ],
)
def test_models_of_steps_are_kept_by_number(tmp_path: Path, options: dict[str, Any], kept: list[int]) -> None:
    build_trainer(config(tmp_path, {"use": "export", **options})).fit()

    found = sorted(path.name for path in (tmp_path / "runs/run").glob("model_step_*"))
    assert found == [f"model_step_{step}" for step in kept]


@pytest.mark.parametrize("keep_last", [0, -2])
def test_export_refuses_to_keep_no_models(tmp_path: Path, keep_last: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot keep {keep_last} exports; expected 1 or more, or -1"):
        config(tmp_path, {"use": "export", "keep_last": keep_last})


def test_resumed_run_replaces_the_model(tmp_path: Path) -> None:
    build_trainer(config(tmp_path, "export", "checkpoint")).fit()
    first = weights_of(tmp_path / "runs/run/model")
    (tmp_path / "runs/run/model/note").write_text("of the user")
    longer = {"total_steps": 6, "train_batch_size": 8, "ppo_mini_batch_size": 4, "parameter_sync_step": 2}
    run = {"dir": str(tmp_path / "runs"), "name": "run", "resume": "auto"}
    trainer = build_trainer(config(tmp_path, "export", "checkpoint", trainer=longer, run=run))
    trainer.fit()

    second = weights_of(tmp_path / "runs/run/model")
    assert differs(first, second)
    assert not differs(second, dict(trainer.ports.learner.weights()))


def test_finished_run_that_is_resumed_exports_its_model(tmp_path: Path) -> None:
    trainer = build_trainer(config(tmp_path, "checkpoint"))
    trainer.fit()
    run = {"dir": str(tmp_path / "runs"), "name": "run", "resume": "auto"}
    build_trainer(config(tmp_path, "export", "checkpoint", run=run)).fit()

    assert not differs(weights_of(tmp_path / "runs/run/model"), dict(trainer.ports.learner.weights()))


def test_model_without_save_is_refused_before_the_first_step(tmp_path: Path) -> None:
    trainer = build_trainer(config(tmp_path, "export", model={"use": f"{__name__}:Unsaved"}))

    with pytest.raises(ConfigError) as refused:
        trainer.fit()
    assert str(refused.value).startswith("model: Unsaved has no `save(module, tokenizer, folder)`")
    assert "Write this method (hooktrainer/models/README.md), or remove `export`" in str(refused.value)


def test_full_disk_at_the_end_leaves_the_earlier_model_and_names_the_folder(tmp_path: Path) -> None:
    build_trainer(config(tmp_path, "export", "checkpoint")).fit()
    folder = tmp_path / "runs/run/model"
    before = weights_of(folder)
    run = {"dir": str(tmp_path / "runs"), "name": "run", "resume": "auto"}
    trainer = build_trainer(config(tmp_path, "export", "checkpoint", run=run, model={"use": f"{__name__}:Failing"}))

    with pytest.raises(RunError, match=rf"cannot be exported to {folder}: .*No space left.* An earlier export is unch"):
        trainer.fit()
    assert not differs(before, weights_of(folder))
    assert not (folder.parent / ".model.unfinished").exists()


@pytest.mark.parametrize("error", [OSError("No space left"), SafetensorError("I/O error: No space left")])
def test_error_of_the_system_has_no_traceback(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build_trainer(config(tmp_path, "export"))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(DecoderOptions, "save", fail)
    with pytest.raises(RunError, match=r"No space left.* An earlier export is unchanged") as caught:
        trainer.fit()
    assert caught.value.__cause__ is None


def test_full_disk_during_the_run_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = {"use": f"{__name__}:Failing"}
    trainer = build_trainer(config(tmp_path, {"use": "export", "every": 2}, "checkpoint", model=model))

    with caplog.at_level(logging.WARNING), pytest.raises(RunError, match=r"run/model: OSError"):
        trainer.fit()
    assert trainer.ports.buffer.version == 4
    assert [record.message[:7] for record in caplog.records if "exported" in record.message] == ["step 2:", "step 4:"]
    assert (tmp_path / "runs/run/checkpoints/step_00000004").is_dir()


def test_export_of_a_language_model_has_its_logits_with_merged_adapters(tmp_path: Path) -> None:
    lora = {"rank": 2, "alpha": 8.0, "targets": ["q_proj", "v_proj"]}
    model = {"use": "huggingface", "path": str(save_model(tmp_path / "source")), "lora": lora}
    rollout = {"use": "inline", "n": 4, "max_prompt_length": 16, "max_response_length": 4}
    trainer = build_trainer(config(tmp_path, "export", model=model, rollout=rollout))
    trainer.fit()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "runs/run/model").eval()

    text = torch.tensor([[5, 7, 9, 11, 13]])
    policy: Any = trainer.ports.engine
    with torch.no_grad():
        torch.testing.assert_close(policy.module(text), plain(text).logits, atol=1e-5, rtol=0.0)


class TestReplacingAFolder:
    def fill(self, folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "new").write_text("new")

    def test_folder_is_made_and_replaced_as_a_whole(self, tmp_path: Path) -> None:
        for _ in range(2):
            replace_folder(tmp_path / "model", self.fill)
            (tmp_path / "model" / "old").write_text("old")
        replace_folder(tmp_path / "model", self.fill)

        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert [path.name for path in (tmp_path / "model").rglob("*")] == ["deep", "new"]

    @pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
    def test_error_leaves_the_earlier_folder_alone(self, tmp_path: Path, error: type[BaseException]) -> None:
        replace_folder(tmp_path / "model", self.fill)

        def fail(folder: Path) -> None:
            (folder / "half").write_text("half")
            raise error

        with pytest.raises(error):
            replace_folder(tmp_path / "model", fail)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert (tmp_path / "model" / "deep" / "new").is_file()

    def test_earlier_folder_is_restored_after_a_crash_between_two_renames(self, tmp_path: Path) -> None:
        replace_folder(tmp_path / "model", self.fill)
        (tmp_path / "model").rename(tmp_path / ".model.replaced")
        restore_folder(tmp_path / "model")

        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_remains_of_a_killed_export_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".model.unfinished").mkdir()
        (tmp_path / ".model.unfinished" / "half").write_text("half")
        replace_folder(tmp_path / "model", self.fill)

        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_link_is_replaced_and_its_target_kept(self, tmp_path: Path) -> None:
        replace_folder(tmp_path / "elsewhere", self.fill)
        (tmp_path / "model").symlink_to(tmp_path / "elsewhere")
        replace_folder(tmp_path / "model", self.fill)

        assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "model"]
        assert (tmp_path / "elsewhere" / "deep" / "new").is_file()

    @pytest.mark.parametrize("has_earlier", [False, True])
    def test_kill_in_the_middle_leaves_the_earlier_folder_or_none(self, tmp_path: Path, has_earlier: bool) -> None:
        if has_earlier:
            replace_folder(tmp_path / "model", self.fill)
        code = (
            "import os, signal, sys, pathlib\n"
            "from hooktrainer._util.folders import replace_folder\n"
            "def write(folder):\n"
            "    (folder / 'half').write_text('half')\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "replace_folder(pathlib.Path(sys.argv[1]), write)\n"
        )
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=False)

        assert killed.returncode == -signal.SIGKILL
        assert (tmp_path / "model").exists() == has_earlier
        assert (tmp_path / "model" / "deep").exists() == has_earlier
        replace_folder(tmp_path / "model", self.fill)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
@pytest.mark.parametrize("fail", [None, "iteration", "end"])
def test_adapters_are_exported_with_the_step_of_the_model(tmp_path: Path, fail: str | None) -> None:
    from peft import PeftModel

    source = save_model(tmp_path / "source")
    model = {"use": "huggingface", "path": str(source), "lora": {"rank": 2}}
    rollout = {"use": "inline", "n": 4, "max_prompt_length": 8, "max_response_length": 4}
    plugins = [{"use": f"{__name__}:FailAt", "where": fail}] if fail else []
    trainer = build_trainer(config(tmp_path, "export", *plugins, model=model, rollout=rollout))
    with contextlib.suppress(ValueError, KeyboardInterrupt):
        trainer.fit()

    exported = tmp_path / "runs/run/model"
    plain, tokens = AutoModelForCausalLM.from_pretrained(source), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = plain(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(exported)(tokens).logits
        read = PeftModel.from_pretrained(plain, exported / "adapter")(tokens).logits
    assert not torch.allclose(before, merged, atol=1e-3)
    torch.testing.assert_close(read, merged, rtol=0, atol=1e-5)
