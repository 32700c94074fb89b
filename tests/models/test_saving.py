"""Models that are saved into a folder and loaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from helpers.huggingface_models import CHAT, save_model
from hooktrainer.errors import ConfigError
from hooktrainer.models.huggingface_options import HuggingFaceOptions, LoraOptions
from hooktrainer.models.lora import without_adapters
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.saved_decoder import SavedDecoder
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.reverse import Reverse
from hooktrainer.tasks.sort_digits import SortDigits

TASK = SortDigits(digits=3)
TEXT = torch.tensor([[5, 7, 9, 11, 13]])


def saved_decoder(folder: Path, **options: Any) -> tuple[torch.nn.Module, SavedDecoder]:
    model = DecoderOptions(layers=2, width=16, heads=2, **options)
    tokenizer = model.tokenizer(TASK)
    module = model.build(vocab_size=tokenizer.vocab_size, max_length=9, seed=3)
    folder.mkdir(exist_ok=True)
    model.save(module, tokenizer, folder)
    return module, SavedDecoder(path=folder)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("tied", [False, True])
def test_saved_decoder_has_equal_logits_and_the_same_tokens(tmp_path: Path, positions: str, tied: bool) -> None:
    module, saved = saved_decoder(tmp_path / "model", positions=positions, tied=tied)
    tokenizer = saved.tokenizer(TASK)
    again = saved.build(vocab_size=tokenizer.vocab_size, max_length=7, seed=8)

    assert tokenizer.encode("312").tolist() == DecoderOptions().tokenizer(TASK).encode("312").tolist()
    text = torch.tensor([[4, 5, 6]])
    assert torch.equal(module(text), again(text))
    assert len({id(parameter) for parameter in again.parameters()}) == len(list(module.parameters()))


def test_decoder_folder_is_documented_json_and_safetensors(tmp_path: Path) -> None:
    saved_decoder(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format"] == "hooktrainer.decoder"
    assert (config["version"], config["max_length"], config["alphabet"]) == (1, 9, TASK.alphabet)
    assert config["options"] == DecoderOptions(layers=2, width=16, heads=2).architecture()


def test_saved_decoder_can_be_saved_again(tmp_path: Path) -> None:
    module, saved = saved_decoder(tmp_path / "first")
    (tmp_path / "second").mkdir()
    saved.save(module, saved.tokenizer(TASK), tmp_path / "second")

    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_decoder_is_not_built_for_longer_texts_than_it_was_trained_for(tmp_path: Path) -> None:
    _, saved = saved_decoder(tmp_path)

    with pytest.raises(ConfigError, match=r"up to 10 tokens, and the decoder in .* was trained for 9\. Lower"):
        saved.build(vocab_size=12, max_length=10, seed=0)


@pytest.mark.parametrize("task", [Addition(), Reverse()])
def test_decoder_refuses_a_task_with_other_characters(tmp_path: Path, task: Any) -> None:
    _, saved = saved_decoder(tmp_path)

    with pytest.raises(ConfigError, match=r"has the alphabet '.*', without '.*' of the task"):
        saved.tokenizer(task)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "its version is 2, and this hooktrainer reads version 1"),
        ({"format": "gguf"}, "its format is 'gguf', expected 'hooktrainer.decoder'"),
        ({"alphabet": None}, "has no 'alphabet'"),
        ({"options": {"layers": 3, "width": 16, "heads": 2}}, "'layers.2.attention_norm.weight' is missing, expected"),
    ],
)
def test_damaged_decoder_folder_is_refused_with_the_reason(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    _, saved = saved_decoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )

    with pytest.raises(ConfigError) as refused:
        saved.build(vocab_size=saved.tokenizer(TASK).vocab_size, max_length=9, seed=0)
    assert text in str(refused.value)


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_cut_weights_of_a_decoder_are_refused_with_their_file(tmp_path: Path, cut: int) -> None:
    _, saved = saved_decoder(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:cut])

    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        saved.build(vocab_size=12, max_length=9, seed=0)


def test_other_module_than_the_decoder_needs_its_own_save(tmp_path: Path) -> None:
    model = DecoderOptions(layers=1, width=16, heads=2)

    with pytest.raises(TypeError, match="Linear is not the built-in decoder, so its class needs its own `save`"):
        model.save(torch.nn.Linear(2, 2), model.tokenizer(TASK), tmp_path)


def exported(tmp_path: Path, architecture: str = "llama", chat: bool = False, **options: Any) -> tuple[Any, Any, Path]:
    source = save_model(tmp_path / "source", architecture, chat=chat)
    model = HuggingFaceOptions(path=str(source), **options)
    tokenizer: Any = model.tokenizer(TASK)
    module = model.build(vocab_size=tokenizer.vocab_size, max_length=20, seed=0).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    folder = tmp_path / "exported"
    folder.mkdir()
    model.save(without_adapters(module), tokenizer, folder)
    return module, tokenizer, folder


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gpt2", "gpt_neox"])
def test_exported_model_has_equal_logits_in_transformers(tmp_path: Path, architecture: str) -> None:
    module, _, folder = exported(tmp_path, architecture)
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()

    assert plain.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(module(TEXT), plain(TEXT).logits, atol=1e-5, rtol=0.0)


def test_exported_model_has_merged_adapters(tmp_path: Path) -> None:
    lora = LoraOptions(rank=2, targets=("q_proj", "v_proj"))
    module, _, folder = exported(tmp_path, lora=lora)
    source = AutoModelForCausalLM.from_pretrained(tmp_path / "source").eval()
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()

    with torch.no_grad():
        torch.testing.assert_close(module(TEXT), plain(TEXT).logits, atol=1e-5, rtol=0.0)
        assert (source(TEXT).logits - plain(TEXT).logits).abs().max() > 1e-2
    assert not any("lora" in name for name, _ in plain.named_parameters())


@pytest.mark.parametrize("template", ["auto", "none", "file"])
def test_exported_tokenizer_has_the_template_of_the_training(tmp_path: Path, template: str) -> None:
    (tmp_path / "chat.jinja").write_text("Q: " + CHAT)
    given = str(tmp_path / "chat.jinja") if template == "file" else template
    _, tokenizer, folder = exported(tmp_path, chat=True, chat_template=given)
    again = HuggingFaceOptions(path=str(folder)).tokenizer(TASK)

    np.testing.assert_array_equal(again.encode("sort 3 1 2"), tokenizer.encode("sort 3 1 2"))
    assert bool(AutoTokenizer.from_pretrained(folder).chat_template) == (template != "none")


def test_generation_settings_are_exported_also_if_transformers_finds_them_inconsistent(tmp_path: Path) -> None:
    source = save_model(tmp_path / "source")
    settings = source / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"temperature": 0.7, "eos_token_id": [1, 2]}))
    model = HuggingFaceOptions(path=str(source))
    tokenizer = model.tokenizer(TASK)
    (tmp_path / "exported").mkdir()
    model.save(model.build(vocab_size=tokenizer.vocab_size, max_length=20, seed=0), tokenizer, tmp_path / "exported")

    found = GenerationConfig.from_pretrained(tmp_path / "exported")
    assert (found.temperature, found.eos_token_id) == (0.7, [1, 2])
    assert HuggingFaceOptions(path=str(tmp_path / "exported")).tokenizer(TASK).eos_ids == tokenizer.eos_ids
