"""Encode nested state as strict JSON with named tensors and arrays, and decode it. No code is stored or executed.

JSON values are stored as they are. Every other type is a mapping with one key that starts with `$`:
`{"$tensor": name}`, `{"$tuple": [...]}`, `{"$dict": [[key, value], ...]}` for keys that are not strings. Random
generators are stored by their state.
"""

from __future__ import annotations

import base64
import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Snapshot

if TYPE_CHECKING:
    from torch import Tensor

_MAX_DEPTH: Final = 100
"""Maximum nesting; deeper states would exceed Python's recursion limit."""
_MAX_INT_BITS: Final = 8192
"""Maximum size of an integer; Python does not parse longer ones by default."""
_CONTAINERS: Final[Mapping[type, str]] = {tuple: "tuple", set: "set", frozenset: "frozenset"}


def encode(step: int, parts: Mapping[str, object]) -> Snapshot:
    """Return a snapshot with copies of all parts. Raises `CheckpointError` for a type that cannot be saved."""
    encoder = _Encoder()
    trees = {name: encoder.tree(value, name, 0) for name, value in parts.items()}
    return Snapshot(step=step, parts=trees, tensors=encoder.tensors, arrays=encoder.arrays)


def decode(snapshot: Snapshot, part: str) -> Any:
    """Return a copy of the state of a part. Raises `CheckpointError` if the part is missing or damaged."""
    if part not in snapshot.parts:
        raise CheckpointError(f"the checkpoint of step {snapshot.step} has no part '{part}'")
    try:
        return _Decoder(snapshot).value(snapshot.parts[part])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        text = f"part '{part}' of the checkpoint of step {snapshot.step} is damaged: {error!r}"
        raise CheckpointError(text) from error


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._tied: dict[tuple[object, ...], tuple[str, Tensor]] = {}  # holds tensors: memory is not reused

    def tree(self, value: Any, path: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"the state {path} is nested deeper than {_MAX_DEPTH} levels")
        kind = type(value)
        if kind is int and value.bit_length() > _MAX_INT_BITS:
            raise CheckpointError(
                f"the state {path} is a {value.bit_length()}-bit integer; the limit is {_MAX_INT_BITS}"
            )
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is list:
            return self._items(value, path, depth)
        if kind is dict:
            return self._mapping(value, path, depth)
        if kind in _CONTAINERS:
            return {f"${_CONTAINERS[kind]}": self._items(value, path, depth)}
        return self._other(value, path, depth)

    def _other(self, value: Any, path: str, depth: int) -> Any:
        if is_tensor(value):
            return {"$tensor": self._tensor(value, path)}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"$array" if isinstance(value, np.ndarray) else "$scalar": self._array(np.asarray(value), path)}
        if type(value) is bytes:
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        if type(value) is Counter:
            return {"$counter": self._pairs(value, path, depth)}
        if type(value) is deque:
            return {"$deque": [value.maxlen, self._items(value, path, depth)]}
        if (generator := _generator_state(value)) is not None:
            return {"$generator": self.tree(generator, path, depth + 1)}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"the state {path} is a {kind}, which cannot be saved. Use numbers, strings, lists, tuples, sets, dicts, "
            "counters, deques, tensors, arrays and random generators, and construct other objects from them."
        )

    def _items(self, values: Any, path: str, depth: int) -> list[Any]:
        return [self.tree(value, f"{path}/{place}", depth + 1) for place, value in enumerate(values)]

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.tree(item, f"{path}/{key}", depth + 1) for key, item in value.items()}
        return {"$dict": self._pairs(value, path, depth)}

    def _pairs(self, value: Mapping[Any, Any], path: str, depth: int) -> list[Any]:
        return [
            [self.tree(key, f"{path}/{key}", depth + 1), self.tree(item, f"{path}/{key}", depth + 1)]
            for key, item in value.items()
        ]

    def _tensor(self, tensor: Tensor, path: str) -> str:
        torch = sys.modules["torch"]
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(
                f"the state {path} is a {tensor.layout} tensor; only dense, unquantized ones can be saved"
            )
        if tensor.dtype in (torch.complex32, torch.complex128):
            raise CheckpointError(f"the state {path} is a {tensor.dtype} tensor, which cannot be saved; use complex64")
        tensor = tensor.detach()
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and place in self._tied:
            return self._tied[place][0]
        name = _unused_name(path, self.tensors)
        self.tensors[name] = tensor.to("cpu", copy=True).contiguous()
        self._tied[place] = name, tensor
        return name

    def _array(self, array: np.ndarray, path: str) -> str:
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise CheckpointError(f"the state {path} is an array of {array.dtype}; only numbers can be saved")
        name = _unused_name(path, self.arrays)
        self.arrays[name] = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        return name


def _unused_name(path: str, taken: Mapping[str, object]) -> str:
    plain = path.encode("utf-8", "backslashreplace").decode()  # a key may contain a lone surrogate
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain}#{number}"
    return name


def _generator_state(value: Any) -> dict[str, Any] | None:
    """Return the state of a random generator; None for any other value."""
    if type(value) is random.Random:
        return {"kind": "python", "state": value.getstate()}
    if type(value) is np.random.Generator:
        return {"kind": "numpy", "state": value.bit_generator.state}
    if type(value) is np.random.RandomState:
        return {"kind": "numpy_legacy", "state": value.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Generator:
        return {"kind": "torch", "device": str(value.device), "state": value.get_state()}
    return None


class _Decoder:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._tensors: dict[str, Tensor] = {}  # tied tensors are shared again
        self._readers: dict[str, Callable[[Any], Any]] = {
            "$float": float,
            "$bytes": lambda data: base64.b64decode(data, validate=True),
            "$tuple": lambda items: tuple(map(self.value, items)),
            "$set": lambda items: set(map(self.value, items)),
            "$frozenset": lambda items: frozenset(map(self.value, items)),
            "$dict": self._pairs,
            "$counter": lambda pairs: Counter(self._pairs(pairs)),
            "$deque": lambda pair: deque(map(self.value, pair[1]), pair[0]),
            "$tensor": self._tensor,
            "$array": lambda name: self._snapshot.arrays[name].copy(),
            "$scalar": lambda name: self._snapshot.arrays[name].reshape(())[()],
            "$generator": lambda tree: _generator(self.value(tree)),
        }

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if len(tree) == 1 and (key := next(iter(tree))).startswith("$"):
            return self._readers[key](tree[key])
        return {key: self.value(item) for key, item in tree.items()}

    def _pairs(self, pairs: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in pairs}

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = self._snapshot.tensors[name].clone()
        return self._tensors[name]


def _generator(saved: Mapping[str, Any]) -> Any:
    match saved["kind"]:
        case "python":
            generator: Any = random.Random()  # noqa: S311 (not for secrets)
            generator.setstate(saved["state"])
        case "numpy":
            kind = getattr(np.random, saved["state"]["bit_generator"])
            if not issubclass(kind, np.random.BitGenerator):
                raise TypeError(f"{kind} is not a bit generator")
            generator = np.random.Generator(kind())
            generator.bit_generator.state = saved["state"]
        case "numpy_legacy":
            generator = np.random.RandomState()
            generator.set_state(saved["state"])
        case "torch":
            generator = import_module("torch").Generator(saved["device"])
            generator.set_state(saved["state"])
        case kind:
            raise ValueError(f"unknown generator '{kind}'")
    return generator
