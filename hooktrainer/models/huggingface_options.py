"""Options of a model of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs
from attrs.validators import gt, in_, instance_of, min_len

from hooktrainer._util.registry import FILE
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.device import device_option, to_device
from hooktrainer.models.huggingface_files import MISSING_LIBRARY, folder_faults, library_faults, template_faults
from hooktrainer.ports import Task, Tokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.models.huggingface_loading import Source

ALL_LINEAR: Final = "all-linear"


@attrs.frozen(kw_only=True)
class LoraOptions:
    """Low-rank adapters on linear layers. Only they are trained."""

    rank: int = attrs.field(default=16, validator=[instance_of(int), gt(0)])
    """Rank of the update of a weight."""
    alpha: float = attrs.field(default=32.0, converter=float, validator=gt(0.0))
    """Scale of the update: it is multiplied by alpha / rank."""
    targets: Sequence[str] | Literal["all-linear"] = attrs.field(default=("q_proj", "v_proj"), validator=min_len(1))
    """Last parts of the names of layers, or whole names. `all-linear`: all linear layers but the output head."""


def _expanded(path: str) -> str:
    """Return a path with its home directory; a name of the hub has none."""
    return os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111 (pathlib raises without a home)


@attrs.frozen(kw_only=True)
class HuggingFaceOptions:
    """A causal language model of transformers with its tokenizer, from a folder or the cache of the hub."""

    path: str = attrs.field(converter=_expanded, validator=min_len(1), metadata={FILE: True})
    """Folder of the model, or its name in the cache of the hub. Nothing is downloaded. A folder is relative to the YAML
    file if it is there, or else to the working directory."""
    dtype: Literal["float32", "bfloat16"] = attrs.field(default="float32", validator=in_(("float32", "bfloat16")))
    """Precision of matrix products, by autocast. Weights are float32, so that small updates are not lost. Gradients of
    large batches would underflow in float16."""
    attention: Literal["auto", "sdpa", "eager"] = attrs.field(default="auto", validator=in_(("auto", "sdpa", "eager")))
    """Implementation of attention; `auto` is the choice of transformers."""
    gradient_checkpointing: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether layers are computed again in the backward pass, which saves memory."""
    trust_remote_code: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether Python code in the folder may run."""
    chat_template: str = attrs.field(default="auto", metadata={FILE: True})
    """`auto` applies the chat template of the tokenizer if it has one. `none` encodes texts as they are. Or the path of
    a file with a Jinja template, relative as `path` is."""
    lora: LoraOptions | None = None
    """Adapters to train in place of all weights."""
    device: str = device_option()
    """Where the model is trained: `auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""

    def check_files(self) -> None:
        """Raise `ConfigError` unless transformers is installed and all files of the model are there."""
        faults = [*library_faults()]
        if not faults:
            faults += folder_faults(self.path, trust_remote_code=self.trust_remote_code)
        if self.chat_template not in ("auto", "none"):
            faults += template_faults(self.chat_template)
        if faults:
            raise ConfigError(faults)

    def tokenizer(self, task: Task) -> Tokenizer:  # noqa: ARG002 (it is that of the model)
        """Return the tokenizer of the model."""
        return self._source.tokenizer(self.chat_template)

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:
        """Load the model. `seed` determines the initial adapters.

        Raises `ConfigError` if it does not fit its tokenizer or `max_length`, or cannot decode with a cache.
        """
        from hooktrainer.models.huggingface import HuggingFacePolicy
        from hooktrainer.models.lora import add_lora, all_linear
        from hooktrainer.models.probe import check_policy

        lm = self._source.model(self.attention)
        self._source.check_sizes(lm, vocab_size=vocab_size, max_length=max_length)
        to_device(lm, self.device, "model.device")
        check_policy(HuggingFacePolicy(lm, "float32"))  # half precision rounds more than the check tolerates
        policy = HuggingFacePolicy(lm, self.dtype)
        if self.gradient_checkpointing:
            policy.recompute_layers()
        if self.lora is not None:
            try:
                targets = self.lora.targets
                if targets == ALL_LINEAR:
                    head: nn.Module | None = lm.get_output_embeddings()  # type: ignore[no-untyped-call]
                    targets = all_linear(policy, without=head)
                add_lora(policy, targets=targets, rank=self.lora.rank, alpha=self.lora.alpha, seed=seed)
            except (TypeError, ValueError) as error:
                raise ConfigError([Fault("model.lora", str(error))]) from None
        return policy

    def save(self, module: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
        """Write the model and its tokenizer into a folder that `AutoModelForCausalLM` and `AutoTokenizer` load."""
        from hooktrainer.models.huggingface_saving import save_model

        save_model(module, tokenizer, folder)

    @property
    def _source(self) -> Source:
        try:
            from hooktrainer.models.huggingface_loading import Source
        except ImportError as error:
            raise ConfigError([Fault("model.use", f"{MISSING_LIBRARY} ({error})")]) from None
        return Source(self.path, self.trust_remote_code)
