"""Check the files of a model of transformers before it is loaded, without torch and transformers."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.models.weight_files import check_weights

_CONFIG: Final = "config.json"
GENERATION: Final = "generation_config.json"
"""Settings of a model with further end tokens; not every model has the file."""
_WEIGHTS: Final = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files that transformers looks for, in this order."""
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_OF_A_TOKENIZER: Final = re.compile(r"token|vocab|merges|piece|spm|bpe", re.IGNORECASE)
MISSING_LIBRARY: Final = (
    "'huggingface' needs transformers, which is not installed: pip install 'hooktrainer[hf]', "
    'or in a clone pip install -e ".[hf]"'
)


def library_faults() -> Sequence[Fault]:
    """Return a fault if transformers is not installed."""
    return [] if importlib.util.find_spec("transformers") else [Fault("model.use", MISSING_LIBRARY)]


def folder_faults(path: str, *, trust_remote_code: bool) -> Sequence[Fault]:
    """Return a fault if `path` is no folder or cached model of the hub that has all files of a model."""
    try:
        _check_folder(model_folder(path), path, trust_remote_code=trust_remote_code)
    except ConfigError as error:
        error.place("model.path")
        return error.faults
    except OSError as error:
        return [Fault("model.path", f"{path!r} cannot be read: {error}")]
    return []


def template_faults(path: str) -> Sequence[Fault]:
    """Return a fault if the file of a chat template cannot be read."""
    try:
        read_template(path)
    except ConfigError as error:
        return error.faults
    return []


def read_template(path: str) -> str:
    """Return the content of the file of a chat template. Raises `ConfigError` if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        text = f"{path!r} cannot be read: {error}. It is auto, none, or the path of a file with a Jinja template"
        raise ConfigError([Fault("model.chat_template", text)]) from None


def model_folder(path: str) -> Path:
    """Return the folder of a model, or of one in the cache of the hub. Raises `ConfigError` if there is none."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{path!r} is a file; expected the folder of a model")
    remedy = "Make or copy the folder first (the comments of a shipped configuration describe how)"
    if not _HUB_NAME.fullmatch(path):
        raise ConfigError(f"the folder {path!r} does not exist: {_first_missing(folder)} {remedy}")
    if (cached := _cached(path)) is not None:
        return cached
    text = f"{path!r} is neither a folder nor a model in the cache of the hub: {_first_missing(folder)}"
    raise ConfigError(f"{text} {remedy}, or download a model of the hub: `hf download NAME`")


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, _CONFIG)
    except ValueError:  # it cannot be the name of a model
        return None
    return Path(found).parent if isinstance(found, str) else None


def _first_missing(folder: Path) -> str:
    """Return a sentence with the first part of a path that does not exist, and a similar folder."""
    missing = folder.absolute()
    while not missing.parent.is_dir():
        missing = missing.parent
    relative = {each.absolute(): each for each in (folder, *folder.parents)}.get(missing, missing)
    near = [str(relative.with_name(entry.name)) for entry in missing.parent.iterdir() if entry.is_dir()]
    return f"{missing.parent} has no folder {missing.name!r}.{did_you_mean(str(relative), near)}"


def _check_folder(folder: Path, path: str, *, trust_remote_code: bool) -> None:
    if not (folder / _CONFIG).is_file():
        inner = next((str(each.parent) for depth in ("*", "*/*") for each in folder.glob(f"{depth}/{_CONFIG}")), None)
        hint = (
            f" Did you mean '{inner}'?" if inner else " Expected the folder of a model in the format of transformers."
        )
        raise ConfigError(f"the folder {path!r} has no {_CONFIG}.{hint}")
    config = _mapping(folder / _CONFIG)
    if (folder / GENERATION).exists():
        _mapping(folder / GENERATION)
    if "format" in config and "model_type" not in config:
        remedy = f"write `model: {{use: saved_decoder, path: {path}}}`"
        raise ConfigError(f"{path!r} is a decoder that hooktrainer saved: {remedy}")
    own = config.get("transformers_weights")
    names = (own,) if isinstance(own, str) else _WEIGHTS
    weights = next((folder / name for name in names if (folder / name).is_file()), None)
    if weights is None:
        raise ConfigError(_lack_of_weights(folder, path, names))
    for file in _parts(weights, path) if weights.suffix == ".json" else [weights]:
        check_weights(file)
    if not trust_remote_code and not any(_OF_A_TOKENIZER.search(each.name) for each in folder.iterdir()):
        remedy = "Save that of the model there: tokenizer.save_pretrained(folder)"
        raise ConfigError(f"the folder {path!r} has no tokenizer, such as tokenizer.json. {remedy}")


def _lack_of_weights(folder: Path, path: str, names: Sequence[str]) -> str:
    if (folder / "adapter_config.json").is_file():
        remedy = "merge them into their base model (merge_and_unload), and save that"
        return f"the folder {path!r} has adapters of PEFT and no weights: {remedy}"
    found = ", ".join(sorted(each.name for each in folder.iterdir())[:10])
    return f"the folder {path!r} has no weights: expected {' or '.join(names)}, found {found}"


def _parts(index: Path, path: str) -> Sequence[Path]:
    """Return the files that an index lists. Raises `ConfigError` if one is missing."""
    listed = _mapping(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise ConfigError(f"{index} has no `weight_map` of file names")
    names = sorted(set(listed.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        found = f"{len(names) - len(missing)} of the {len(names)} files that {index.name} lists"
        raise ConfigError(f"{path!r} has {found}: {missing[0]!r} is missing. Copy or download the model again")
    return [index.parent / name for name in names]


def _mapping(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is not a mapping")
    return found
