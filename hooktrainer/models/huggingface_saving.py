"""Save a model of transformers and its tokenizer in the format of Hugging Face."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from hooktrainer.models.huggingface import HuggingFacePolicy
from hooktrainer.models.huggingface_loading import no_progress_bars
from hooktrainer.models.huggingface_tokenizer import HuggingFaceTokenizer
from hooktrainer.ports import Tokenizer


def save_model(module: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in float32, configuration, generation settings and tokenizer. Adapters must be merged."""
    if not isinstance(module, HuggingFacePolicy) or not isinstance(tokenizer, HuggingFaceTokenizer):
        raise TypeError(f"{type(module).__name__} is no model of transformers")
    lm: Any = copy.copy(module.lm)  # shares the weights
    lm.generation_config = _consistent(module.lm.generation_config)
    with no_progress_bars():
        lm.save_pretrained(folder)
    tokenizer.save(folder)


def _consistent(settings: Any) -> Any:
    """Return generation settings that transformers saves: it refuses a temperature without sampling, but loads it."""
    settings = copy.deepcopy(settings)
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True
    return settings
