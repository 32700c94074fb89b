"""A plan refuses a model whose files are missing or damaged, before anything is loaded or written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hooktrainer.cli import main

RUN = """
task: {use: addition}
model: {use: USE, path: models/llama}
rollout: {use: inline, n: 4, max_prompt_length: 12, max_response_length: 4}
trainer: {total_steps: 3, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}
plugins: [metric_aggregation, weight_sync]
"""
WEIGHTS = {"weight": np.zeros((4, 4), np.float32)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a model of transformers."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN.replace("USE", "huggingface"))
    made = Path("models/llama")
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (made / "tokenizer.json").write_text("{}")
    save_file(WEIGHTS, made / "model.safetensors")
    return made


def fault_of(capsys: pytest.CaptureFixture[str], *overrides: str, command: str = "plan") -> str:
    assert main([command, "run.yaml", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    _, *faults = err.splitlines()
    assert len(faults) == 1, err
    assert not Path("runs").exists()
    return faults[0].strip()


def test_a_folder_is_relative_to_the_yaml_or_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "models").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    template = ["model.chat_template=chat.jinja"]
    assert main(["plan", "../run.yaml", *template]) == 2
    assert "model.chat_template" in capsys.readouterr().err

    (elsewhere / "chat.jinja").write_text("{{ messages[0].content }}")
    assert main(["plan", "../run.yaml", *template]) == 0

    (tmp_path / "models").rename(elsewhere / "moved")
    assert main(["plan", "../run.yaml"]) == 2
    assert main(["plan", "../run.yaml", "model.path=moved/llama"]) == 0


def test_plan_of_a_complete_model_imports_neither_torch_nor_transformers() -> None:
    script = """
import sys
from hooktrainer.cli import main
assert main(["plan", "run.yaml"]) == 0
assert not {"torch", "transformers"} & sys.modules.keys()
assert main(["plan", "run.yaml", "model.path=absent/model"]) == 2
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


@pytest.mark.parametrize("command", ["plan", "fit"])
@pytest.mark.parametrize(
    ("path", "found", "hint"),
    [
        ("models/lama", "'models/lama' is neither a folder nor a model in the cache of the hub", "models/llama"),
        ("./model/llama", "the folder './model/llama' does not exist", "models"),
        ("a/b/c", "the folder 'a/b/c' does not exist", ""),
        ("/absent/llama", "the folder '/absent/llama' does not exist: / has no folder 'absent'", ""),
        ("models/llama/config.json", "'{cwd}/models/llama/config.json' is a file; expected the folder of a model", ""),
        ("models", "the folder '{cwd}/models' has no config.json", "{cwd}/models/llama"),
        ("organization/model", "'organization/model' is neither a folder nor a model in the cache of the hub", ""),
    ],
)
def test_a_path_without_a_model_is_refused_with_a_similar_one(
    command: str, path: str, found: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, hint = (text.replace("{cwd}", str(Path.cwd())) for text in (found, hint))
    fault = fault_of(capsys, f"model.path={path}", command=command)
    assert fault.startswith(f"model.path (override model.path={path}): {found}"), fault
    assert (f"Did you mean '{hint}'?" in fault) == bool(hint), fault


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert main(["plan", "run.yaml", "model.path=~/models/llama"]) == 0


def test_a_model_in_the_cache_of_the_hub_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path.cwd() / "hub"))
    repository = Path("hub/models--organization--model")
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123")
    (repository / "snapshots").mkdir()
    folder.rename(repository / "snapshots" / "0123")
    assert main(["plan", "run.yaml", "model.path=organization/model"]) == 0
    (repository / "snapshots" / "0123" / "model.safetensors").unlink()
    assert main(["plan", "run.yaml", "model.path=organization/model"]) == 2


def shards(folder: Path, *, written: int, weight_map: object = None) -> None:
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (folder / "model.safetensors").unlink()
    for name in names[:written]:
        save_file(WEIGHTS, folder / name)
    index = {"weight_map": weight_map or {f"weight.{name}": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_shards_and_in_pickle_files_are_complete(folder: Path) -> None:
    shards(folder, written=3)
    assert main(["plan", "run.yaml"]) == 0
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\3\4")
    assert main(["plan", "run.yaml"]) == 0


def pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 68\n"
    (folder / "model.safetensors").write_text(text)


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])


def adapters(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def decoder(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"format": "hooktrainer.decoder"}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights: expected model.safetenso"),
    "only adapters": (adapters, "has adapters of PEFT and no weights: merge them into their base model"),
    "cut": (cut, "models/llama/model.safetensors is not complete or not of safetensors"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors is not complete"),
    "Git LFS": (pointer, "models/llama/model.safetensors is a pointer of Git LFS: run `git lfs pull` in the folder"),
    "shards": (
        lambda folder: shards(folder, written=1),
        "has 1 of the 3 files that model.safetensors.index.json lists: 'model-00002-of-00003.safetensors' is missing",
    ),
    "index": (lambda folder: shards(folder, written=3, weight_map=[1]), "index.json has no `weight_map` of file names"),
    "config": (lambda folder: (folder / "config.json").write_text("{"), "models/llama/config.json cannot be read: "),
    "list": (lambda folder: (folder / "config.json").write_text("[]"), "models/llama/config.json is not a mapping"),
    "decoder": (
        decoder,
        "is a decoder that hooktrainer saved: write `model: {use: saved_decoder, path: ",
    ),
    "tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer, such as tokenizer.json"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_folder_with_missing_or_damaged_files_is_refused(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, expected = DAMAGES[kind]
    damage(folder)
    fault = fault_of(capsys)
    assert fault.startswith("model.path: ")
    assert expected in fault


def test_a_missing_library_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    fault = fault_of(capsys)
    assert fault.startswith("model.use: 'huggingface' needs transformers, which is not installed: ")
    assert "pip install 'hooktrainer[hf]'" in fault
    assert """pip install -e ".[hf]\"""" in fault


def test_a_missing_chat_template_is_refused_with_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    fault = fault_of(capsys, "model.chat_template=absent.jinja")
    assert fault.startswith("model.chat_template (override model.chat_template=absent.jinja): 'absent.jinja' cannot be")


def test_faults_of_several_files_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "run.yaml", "model={path: absent/model, chat_template: absent.jinja}"]) == 2
    assert capsys.readouterr().err.startswith("2 faults")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is not that of a saved decoder: "),
        (lambda folder: None, "config.json is not that of a saved decoder: has no 'format'"),
    ],
)
def test_a_plan_checks_the_folder_of_a_saved_decoder(
    damage: Callable[[Path], object], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text(RUN.replace("USE", "saved_decoder"))
    damage(folder)
    fault = fault_of(capsys)
    assert fault.startswith("model.path: ")
    assert expected in fault


def test_a_plan_checks_the_weights_of_a_saved_decoder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text(RUN.replace("USE", "saved_decoder"))
    config = {"format": "hooktrainer.decoder", "version": 1, "alphabet": "0123456789+=", "max_length": 16}
    (folder / "config.json").write_text(json.dumps({**config, "options": {}}))
    assert main(["plan", "run.yaml"]) == 0
    capsys.readouterr()
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in fault_of(capsys)


MODEL = """
import attrs
from hooktrainer.models.options import DecoderOptions

@attrs.frozen(kw_only=True)
class Mine(DecoderOptions):
    def check_files(self):
        raise ValueError("the shards of the cluster are not mounted")
"""


def test_own_models_may_check_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(MODEL)
    Path("run.yaml").write_text(RUN.replace("{use: USE, path: models/llama}", "mine.py:Mine"))
    assert fault_of(capsys) == "model: the shards of the cluster are not mounted"
