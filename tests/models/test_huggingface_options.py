"""The options of models of transformers: what cannot be loaded, or does not fit, is refused with its address."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from helpers.huggingface_models import POSITIONS, language_model, save_model, tokenizer
from hooktrainer.cli import main
from hooktrainer.errors import ConfigError
from hooktrainer.models.huggingface_options import HuggingFaceOptions, LoraOptions
from hooktrainer.models.lora import adapters_of

RUN = """
task: {use: addition}
model: {use: huggingface, path: model}
rollout: {use: ENGINE, n: 4, max_prompt_length: 12, max_response_length: 4}
optim: {lr: 1e-3}
trainer: {total_steps: 3, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}
plugins:
  - metric_aggregation
  - weight_sync
  - checkpoint
  - {use: validation, size: 4, every: 1}
  - {use: log_after_collect, sinks: [jsonl]}
"""
TIMES = ("timing", "perf/")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN.replace("ENGINE", "inline"))
    return tmp_path


def rows(name: str) -> list[Mapping[str, float]]:
    found = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in found]


@pytest.mark.parametrize("engine", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_model_in_a_folder_is_trained(engine: str) -> None:
    save_model(Path("model"))
    Path("run.yaml").write_text(RUN.replace("ENGINE", engine))
    assert main(["fit", "run.yaml", "run.name=a"]) == 0
    assert [row["step"] for row in rows("a")] == [1, 2, 3]
    assert all(row["weight_sync/canary_error"] < 1e-5 for row in rows("a"))
    assert any(row["actor/grad_norm"] > 0.0 for row in rows("a"))


def test_a_resumed_run_equals_one_that_was_not_interrupted() -> None:
    save_model(Path("model"))
    assert main(["fit", "run.yaml", "run.name=a"]) == 0
    assert main(["fit", "run.yaml", "run.name=b", "trainer.total_steps=2"]) == 0
    assert main(["fit", "run.yaml", "run.name=b", "run.resume=auto"]) == 0
    assert rows("a") == rows("b")


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2"])
def test_adapters_and_recomputed_layers_are_trained(architecture: str) -> None:
    save_model(Path("model"), architecture)
    options = ["model.gradient_checkpointing=true"]
    options += [] if architecture == "gpt2" else ["model.lora={rank: 2}"]
    assert main(["fit", "run.yaml", "run.name=a", *options]) == 0
    assert all(row["weight_sync/canary_error"] < 1e-5 for row in rows("a"))


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_all_linear_layers_but_the_head_get_adapters(architecture: str) -> None:
    save_model(Path("model"), architecture)
    plain = HuggingFaceOptions(path="model").build(vocab_size=len(tokenizer()), max_length=20, seed=0)
    lora = LoraOptions(rank=2, targets="all-linear")
    adapted = HuggingFaceOptions(path="model", lora=lora).build(vocab_size=len(tokenizer()), max_length=20, seed=0)
    linear = {name for name, module in plain.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, _ in adapters_of(adapted)} == {name for name in linear if not name.endswith("lm_head")}
    assert "q_proj" in {name.rpartition(".")[2] for name in linear}


FAULTS = {
    "no folder": ("model.path=absent", "  model.path (override model.path=absent): 'absent' is neither a folder nor"),
    "no model": ("model.path=empty", "  model.path (override model.path=empty): the folder '"),
    "path": ("model.path=7", "model.path"),
    "dtype": ("model.dtype=float8", "model.dtype"),
    "template": (
        "model.chat_template=absent.jinja",
        "  model.chat_template (override model.chat_template=absent.jinja): 'absent.jinja' cannot be read: ",
    ),
    "rank": ("model.lora={rank: 0}", "model.lora.rank"),
    "targets": ("model.lora={targets: [absent]}", "  model.lora: "),
    "positions": (
        f"rollout.max_prompt_length={POSITIONS}",
        f"(override rollout.max_prompt_length={POSITIONS}): prompts and answers have up to {POSITIONS + 4} tokens",
    ),
    "attention": ("model.attention=flash_attention_2", "model.attention"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_model_that_cannot_be_used_is_refused_at_its_address(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(Path("model"))
    Path("empty").mkdir()
    override, message = FAULTS[kind]
    assert main(["fit", "run.yaml", override]) == 2
    err = capsys.readouterr().err
    assert message in err, err
    assert "Traceback" not in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("size", [270, 5000])
def test_a_tokenizer_of_another_model_is_refused_with_both_numbers(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    language_model(vocab_size=size).save_pretrained("model")
    tokenizer().save_pretrained("model")
    assert main(["fit", "run.yaml"]) == 2
    found = f"model.path: the model '{Path.cwd() / 'model'}' has {size} tokens, and its tokenizer {len(tokenizer())}"
    assert found in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_architecture_that_cannot_decode_with_a_cache_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    language_model("mamba", vocab_size=len(tokenizer())).save_pretrained("model")
    tokenizer().save_pretrained("model")
    assert main(["fit", "run.yaml"]) == 2
    assert "MambaForCausalLM cannot be trained" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_weights_in_half_precision_are_loaded_as_float32() -> None:
    language_model(vocab_size=len(tokenizer())).to(torch.bfloat16).save_pretrained("model")
    tokenizer().save_pretrained("model")
    built = HuggingFaceOptions(path="model").build(vocab_size=len(tokenizer()), max_length=20, seed=0)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float32}


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "cohere"])
def test_rounding_in_half_precision_is_no_reason_to_refuse_a_model(architecture: str) -> None:
    save_model(Path("model"), architecture)
    words = tokenizer()
    options = HuggingFaceOptions(path="model", dtype="bfloat16", gradient_checkpointing=True)

    built = options.build(vocab_size=len(words), max_length=20, seed=0)

    assert built(torch.tensor([[3, 4, 5]])).dtype == torch.bfloat16


def without(*names: str) -> Callable[[Path], None]:
    """Return a function that removes weights whose names contain one of these words."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if not any(word in name for word in names)}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return change


def prefixed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({f"other.{name}": each for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def configured(name: str, **options: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(content | options))

    return change


def cut_off(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1,')


OTHER_FILES = {
    "a layer is missing": (without("layers.1.mlp"), "lack 3 weights of the model, such as 'model.layers.1.mlp"),
    "no head": (without("lm_head"), "lack 1 weights of the model, such as 'lm_head.weight', which would be random"),
    "other names": (prefixed, "weights of the model, such as "),
    "more layers": (configured("config.json", num_hidden_layers=9), "weights of the model, such as "),
    "another width": (configured("config.json", intermediate_size=12), "weights of the model, such as "),
    "NaN": (not_a_number, "the weight 'model.norm.weight' of "),
    "end tokens cut off": (cut_off, "generation_config.json cannot be read: "),
    "end tokens": (configured("generation_config.json", eos_token_id=[1, 99999]), "ends answers with the tokens [1, "),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_files_of_another_model_are_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = OTHER_FILES[kind]
    change(save_model(Path("model")))
    assert main(["fit", "run.yaml"]) == 2
    err = capsys.readouterr().err
    assert message in err, err
    assert "Traceback" not in err
    assert not Path("runs").exists()


def test_weights_that_the_model_does_not_use_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    configured("config.json", num_hidden_layers=1)(save_model(Path("model")))
    for _ in range(2):
        HuggingFaceOptions(path="model").build(vocab_size=len(tokenizer()), max_length=20, seed=0)
    (warning,) = [record.message for record in caplog.records if record.name == "hooktrainer"]
    assert "weights that the model does not use, such as 'model.layers.1." in warning


TEMPLATES = {
    "syntax": (
        "{% for %}",
        "model.chat_template (override model.chat_template=chat.jinja): the chat template cannot write",
    ),
    "refuses texts of users": ("{{ raise_exception('no users') }}", "no users"),
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_chat_template_that_cannot_be_applied_is_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(Path("model"), chat=True)
    template, message = TEMPLATES[kind]
    Path("chat.jinja").write_text(template)
    assert main(["fit", "run.yaml", "model.chat_template=chat.jinja"]) == 2
    err = capsys.readouterr().err
    assert message in err, err
    assert "Traceback" not in err


def test_messages_that_a_template_cannot_write_are_refused() -> None:
    made = HuggingFaceOptions(path=str(save_model(Path("model"), chat=True))).tokenizer(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no role"):
        made.encode_observation([{"content": "7"}])  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is not a text"):
        made.encode([{"role": "user", "content": [{"type": "text", "text": "7"}]}])
    plain = made.encode_observation("7")  # type: ignore[attr-defined]
    marked = made.encode_observation("<the turn of the policy>7")  # type: ignore[attr-defined]
    assert len(marked) > len(plain)
