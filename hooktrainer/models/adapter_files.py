"""Files of adapters in the format of PEFT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
from safetensors.torch import save_file
from torch import Tensor, nn

from hooktrainer.models.lora import adapters_of

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"


@attrs.frozen(eq=False)
class AdapterFiles:
    """A copy of the adapters of a policy, as `peft.PeftModel.from_pretrained(model, folder)` reads them.

    `model` is the policy without adapters; for a policy of Hugging Face it is the language model.
    """

    config: Mapping[str, object]
    tensors: Mapping[str, Tensor]

    def write(self, folder: Path) -> None:
        """Write the files, and the folder if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(self.tensors), folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(self.config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def copied_adapters(policy: nn.Module) -> AdapterFiles | None:
    """Return a copy of the adapters of a policy; None if it has none."""
    lm = getattr(policy, "lm", None)
    model = lm if isinstance(lm, nn.Module) else policy
    adapters = dict(adapters_of(model))
    if not adapters:
        return None
    first = next(iter(adapters.values()))
    config = {
        "peft_type": "LORA",
        "task_type": None if model is policy else "CAUSAL_LM",
        "base_model_name_or_path": getattr(getattr(model, "config", None), "name_or_path", None),
        "r": first.lora_a.shape[0],
        "lora_alpha": first.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(adapters),
    }
    tensors = dict[str, Tensor]()
    for name, layer in adapters.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.lora_a.detach().clone()
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.lora_b.detach().clone()
    return AdapterFiles(config, tensors)
