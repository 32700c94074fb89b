"""Adapters are in float32 and are saved in the format of PEFT."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from helpers.learners import VOCAB, build
from hooktrainer.models.adapter_files import copied_adapters
from hooktrainer.models.huggingface import HuggingFacePolicy
from hooktrainer.models.lora import LoraLinear, add_lora, without_adapters

TOKENS = torch.tensor([[2, 3, 4, 5, 6, 1]])


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
    config = LlamaConfig(vocab_size=VOCAB, num_attention_heads=4, num_key_value_heads=2, **sizes)
    return LlamaForCausalLM(config).eval()


def written(policy: nn.Module, folder: Path) -> None:
    files = copied_adapters(policy)
    assert files is not None
    files.write(folder)


def draw_adapters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize(
    "targets",
    [["q_proj", "v_proj"], ["q_proj", "down_proj", "lm_head"], ["model.layers.1.self_attn.o_proj"]],
)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
def test_peft_reads_saved_adapters_with_equal_logits(targets: list[str], tmp_path: Path) -> None:
    from peft import PeftModel

    lm = llama()
    plain = copy.deepcopy(lm)
    policy = HuggingFacePolicy(lm)
    add_lora(policy, targets=[f"lm.{target}" if "." in target else target for target in targets], rank=3, alpha=7.0)
    draw_adapters(policy)

    written(policy, tmp_path / "adapters")
    read = PeftModel.from_pretrained(plain, tmp_path / "adapters")

    with torch.no_grad():
        assert not torch.allclose(policy(TOKENS), llama()(TOKENS).logits, atol=1e-2)
        torch.testing.assert_close(read(TOKENS).logits, policy(TOKENS), rtol=0, atol=1e-6)
        merged = without_adapters(policy)(TOKENS)
        torch.testing.assert_close(read.merge_and_unload()(TOKENS).logits, merged, rtol=0, atol=1e-5)


def test_peft_reads_adapters_of_the_small_decoder(tmp_path: Path) -> None:
    from peft import PeftModel

    policy, plain = build(), build()
    add_lora(policy, targets=["qkv", "mlp_out"], rank=2, alpha=4.0)
    draw_adapters(policy)
    written(policy, tmp_path)
    read = PeftModel.from_pretrained(plain, tmp_path)
    torch.testing.assert_close(read(TOKENS), policy(TOKENS), rtol=0, atol=1e-6)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 4.0, "LORA")


def test_a_policy_without_adapters_has_no_files() -> None:
    assert copied_adapters(build()) is None


def test_a_copy_does_not_change_with_the_policy() -> None:
    policy = HuggingFacePolicy(llama())
    add_lora(policy, targets=["q_proj"], rank=2, alpha=4.0)
    copied = copied_adapters(policy)
    assert copied is not None
    before = {name: tensor.clone() for name, tensor in copied.tensors.items()}
    draw_adapters(policy)
    assert all(torch.equal(before[name], tensor) for name, tensor in copied.tensors.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_adapters_are_at_least_in_single_precision(dtype: torch.dtype) -> None:
    model = build(dtype)
    add_lora(model, targets=["qkv"], rank=2, alpha=4.0)
    draw_adapters(model)
    (layer,) = (part for part in model.modules() if isinstance(part, LoraLinear))
    assert layer.lora_a.dtype == layer.lora_b.dtype == torch.promote_types(dtype, torch.float32)
    assert layer(torch.ones(1, 16, dtype=dtype)).dtype == dtype
    exact = layer.weight.double() + 2.0 * layer.lora_b.double() @ layer.lora_a.double()
    torch.testing.assert_close(layer.merged(), exact.to(dtype))


def test_a_layer_of_another_kind_is_refused_by_name() -> None:
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_layer=1, n_embd=16, n_head=2, n_positions=16))
    with pytest.raises(ValueError, match=r"'lm\.transformer\.h\.0\.attn\.c_attn' is of type Conv1D; adapters are for"):
        add_lora(HuggingFacePolicy(lm), targets=["c_attn"], rank=2, alpha=4.0)
    with pytest.raises(ValueError, match="'embedding' is of type Embedding"):
        add_lora(build(), targets=["embedding"], rank=2, alpha=4.0)
    assert not [name for name, p in lm.named_parameters() if not p.requires_grad]
