"""One checkpoint: a directory of data files, and a manifest with their checksums that is written last.

`state.json` holds every part with its step, and refers to tensors and arrays in the safetensors files by name. It also
holds the checksums of these files, and each of them holds its step. A file of another checkpoint is therefore refused,
even if the manifest is changed to fit it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import xxhash

from hooktrainer._util import files
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Snapshot

FORMAT: Final = 4
MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
TENSORS: Final = "tensors.safetensors"
ARRAYS: Final = "arrays.safetensors"


@attrs.frozen(kw_only=True)
class Manifest:
    """The content of `manifest.json`."""

    step: int
    scores: Mapping[str, float]
    """The values that checkpoints are ranked by; empty if the step had none."""
    files: Mapping[str, Mapping[str, Any]]
    """Size in bytes and checksum (XXH3, 128 bits) by file name."""


def write(snapshot: Snapshot, directory: Path, scores: Mapping[str, float]) -> None:
    """Write a snapshot to an empty directory. Raises `OSError` or `CheckpointError` if that fails."""
    _write_tensors(snapshot, directory)
    written = {path.name: _synced(path) for path in sorted(directory.iterdir())}
    parts = {name: {"step": snapshot.step, "state": tree} for name, tree in snapshot.parts.items()}
    checksums = {name: file["xxh3_128"] for name, file in written.items()}
    state = {"format": FORMAT, "step": snapshot.step, "files": checksums, "parts": parts}
    files.write(directory / STATE, _to_json(state))
    written[STATE] = _synced(directory / STATE)
    body = {"format": FORMAT, "step": snapshot.step, "scores": dict(scores), "files": written}
    files.write(directory / MANIFEST, _to_json({"body": body, "xxh3_128": _checksum_of(body)}))
    files.sync(directory)


def _synced(path: Path) -> Mapping[str, Any]:
    """Sync a file to disk; return its size and checksum."""
    files.set_mode(path, path.parent.stat().st_mode & 0o666)  # safetensors creates files with mode 600
    files.sync(path)
    return {"bytes": path.stat().st_size, "xxh3_128": _checksum(path)}


def _write_tensors(snapshot: Snapshot, directory: Path) -> None:
    from safetensors import SafetensorError

    stamp = {"step": str(snapshot.step)}
    try:
        if snapshot.tensors:
            from safetensors.torch import save_file

            save_file(dict(snapshot.tensors), directory / TENSORS, stamp)
        if snapshot.arrays:
            from safetensors.numpy import save_file as save_arrays

            save_arrays(dict(snapshot.arrays), directory / ARRAYS, stamp)
    except SafetensorError as error:  # it wraps the error of the system
        raise OSError(str(error)) from error


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest without checking the files. Raises `CheckpointError` if it is missing or damaged."""
    try:
        found = _from_json((directory / MANIFEST).read_bytes())
        body = found["body"]
        if found["xxh3_128"] != _checksum_of(body):
            raise ValueError("its checksum is wrong")
        if body["format"] != FORMAT:
            raise ValueError(f"it has format {body['format']}; this version of hooktrainer reads {FORMAT}")
        if not body["files"].keys() <= {STATE, TENSORS, ARRAYS}:
            raise ValueError("it lists files that are not part of a checkpoint")
        if STATE not in body["files"]:
            raise ValueError(f"it does not list {STATE}")
        scores = {str(metric): float(score) for metric, score in body["scores"].items()}
        return Manifest(step=int(body["step"]), scores=scores, files=body["files"])
    except FileNotFoundError:
        raise CheckpointError(f"it has no {MANIFEST}, so it was not written completely") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"its {MANIFEST} cannot be read: {error}") from error


def read(directory: Path) -> Snapshot:
    """Read a checkpoint and verify the checksum of every file. Raises `CheckpointError` if one differs."""
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():
        _check(directory / name, expected)
    try:
        state = _from_json((directory / STATE).read_bytes())
        parts = {name: part["state"] for name, part in state["parts"].items()}
        stamps = {state["step"], *(part["step"] for part in state["parts"].values())}
        checksums = dict(state["files"])
        tensors, stamp_of_tensors = _load(directory / TENSORS, "pt") if TENSORS in manifest.files else ({}, None)
        arrays, stamp_of_arrays = _load(directory / ARRAYS, "np") if ARRAYS in manifest.files else ({}, None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"it cannot be read: {error}") from error
    if stamps != {manifest.step}:
        raise CheckpointError(f"its parts are of the steps {sorted(stamps)}, its manifest is of step {manifest.step}")
    _check_origin(manifest, checksums, {TENSORS: stamp_of_tensors, ARRAYS: stamp_of_arrays})
    return Snapshot(step=manifest.step, parts=parts, tensors=tensors, arrays=arrays)


def _check_origin(manifest: Manifest, checksums: Mapping[str, str], stamps: Mapping[str, str | None]) -> None:
    """Raise `CheckpointError` if a file is not the one that was saved with `state.json`."""
    for name, stamp in stamps.items():
        if name in manifest.files and stamp != str(manifest.step):
            found = "has no stamp" if stamp is None else f"is of step {stamp}"
            raise CheckpointError(f"{name} {found}, its manifest is of step {manifest.step}")
        listed = manifest.files.get(name, {}).get("xxh3_128")
        if listed != checksums.get(name):
            raise CheckpointError(f"{name} is not the file that was saved with {STATE}")


def _check(path: Path, expected: Mapping[str, Any]) -> None:
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise CheckpointError(f"{path.name} has {size} bytes instead of {expected['bytes']}")
        if _checksum(path) != expected["xxh3_128"]:
            raise CheckpointError(f"the checksum of {path.name} is wrong: the file was changed after it was written")
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing") from None
    except (OSError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error


def _load(path: Path, framework: str) -> tuple[Mapping[str, Any], str | None]:
    """Return the tensors or arrays of a file, and the step in its own stamp."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, (file.metadata() or {}).get("step")  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _checksum_of(body: object) -> str:
    return xxhash.xxh3_128_hexdigest(_to_json(body, sort_keys=True))


def _to_json(value: object, *, sort_keys: bool = False) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=sort_keys).encode("ascii")


def _from_json(data: bytes) -> Any:
    return json.loads(data, parse_constant=_reject_constant)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")
