"""Find the trained model in a run directory or a model folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import yaml  # type: ignore[import-untyped]

from hooktrainer.checkpoint.codec import decode
from hooktrainer.checkpoint.store import has_checkpoint, load
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.models.huggingface_options import HuggingFaceOptions
from hooktrainer.models.saved_decoder import SavedDecoder
from hooktrainer.run.limits import prompt_length
from hooktrainer.run.loading import load as load_composition

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hooktrainer.ports import Task, Tokenizer

_NUMBERED: Final = re.compile(r"model_step_(\d+)")
_OF_THE_RUN: Final = ("dtype", "attention", "trust_remote_code")
"""Options of a model that a folder does not hold, and that change its answers."""


@attrs.frozen(kw_only=True)
class Trained:
    """A model with trained weights."""

    model: Any
    """Options of the model, as `model` of a configuration: `tokenizer` and `build`, which loads the weights."""
    place: Path
    """The model folder or the checkpoint."""
    task: Any = None
    """The task of the run, for a checkpoint, whose tokenizer is made from it."""
    max_response_length: int | None = None
    """`rollout.max_response_length` of the run; None if the folder is in no run directory."""


@attrs.frozen(kw_only=True)
class RestoredModel:
    """The model of a run with the weights of a checkpoint."""

    options: Any
    weights: Mapping[str, Tensor]
    place: Path
    max_length: int
    """Tokens of a prompt and its answer that the model was built for."""

    def tokenizer(self, task: Task) -> Tokenizer:
        """Return the tokenizer of the run."""
        found: Tokenizer = self.options.tokenizer(task)
        return found

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:
        """Build the model with the weights. Raises `ConfigError` if they do not fit."""
        import torch

        from hooktrainer.models.policy import full_state
        from hooktrainer.models.precision import to_single_precision

        if max_length > self.max_length:
            found = f"prompts and answers have up to {max_length} tokens, and the model in {self.place}"
            text = f"{found} was trained for {self.max_length}. Lower max_prompt_length or max_response_length"
            raise ConfigError([Fault("rollout", text)])
        module: nn.Module = self.options.build(vocab_size=vocab_size, max_length=self.max_length, seed=seed)
        to_single_precision(module)
        state = full_state(module)
        if other := sorted(name for name in state.keys() | self.weights.keys() if not _fits(state, self.weights, name)):
            text = f"the weights in {self.place} do not fit the model of the run: '{other[0]}' differs"
            raise ConfigError([Fault("model", f"{text}. The model was changed after the run")])
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(self.weights[name])
        return module


def find_trained(path: Path) -> Trained:
    """Return the model at a path: `model/` of a run directory, its newest checkpoint if it has none, or a folder.

    Raises `ConfigError` if there is none.
    """
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        near = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        text = f"{path} {found}; expected a run directory such as runs/NAME, or the folder of a model."
        raise ConfigError(text + did_you_mean(path.name, near))
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return _of_folder(folder)
    if has_checkpoint(path):
        return _of_checkpoint(path)
    steps = {int(match[1]): entry for entry in path.iterdir() if (match := _NUMBERED.fullmatch(entry.name))}
    if steps:
        return _of_folder(steps[max(steps)])
    if (path / "config.yaml").is_file():
        text = f"the run in {path} has no model: no step was completed, or it had neither of the plugins"
        raise ConfigError(f"{text} `export` and `checkpoint`")
    raise ConfigError(
        f"{path} has no model: it has no config.json, and is no run directory with a model or checkpoints"
    )


def _of_folder(folder: Path) -> Trained:
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = {"decoder": content.get("format"), "huggingface": content.get("model_type")}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from None
    run = _settings(folder.parent)
    length = run.get("rollout", {}).get("max_response_length")
    if kind["decoder"] is not None:
        return Trained(model=SavedDecoder(path=folder), place=folder, max_response_length=length)
    if kind["huggingface"] is None:
        text = f"{folder / 'config.json'} has neither a `format` of hooktrainer nor a `model_type` of transformers"
        raise ConfigError(f"{text}, so that the model cannot be loaded")
    options = {name: value for name, value in run.get("model", {}).items() if name in _OF_THE_RUN}
    model = HuggingFaceOptions(path=str(folder), **options)
    return Trained(model=model, place=folder, max_response_length=length)


def _of_checkpoint(path: Path) -> Trained:
    config = next((place for place in (path, *list(path.parents)[:2]) if (place / "config.yaml").is_file()), None)
    if config is None:
        raise ConfigError(f"{path} has a checkpoint without the config.yaml of its run; give the run directory")
    run = load_composition(config / "config.yaml")
    found = load(path)
    weights = decode(found.snapshot, "learner")["weights"]["policy"]
    longest = prompt_length(run.rollout, run.model, run.task) + run.rollout.max_response_length
    model = RestoredModel(options=run.model, weights=weights, place=found.path, max_length=longest)
    return Trained(model=model, place=found.path, task=run.task, max_response_length=run.rollout.max_response_length)


def _settings(directory: Path) -> Mapping[str, Any]:
    """Return the sections of the configuration of a run; none if there is no readable one."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        found = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {key: value for key, value in found.items() if isinstance(value, dict)}
    return {}


def _fits(state: Mapping[str, Tensor], weights: Mapping[str, Tensor], name: str) -> bool:
    return name in state and name in weights and state[name].shape == weights[name].shape
