"""State as plain data: it is restored unchanged, shares no memory, and runs no code."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.errors import CheckpointError


def back(value: object) -> Any:
    snapshot = encode(1, {"part": value})
    json.dumps(snapshot.parts, allow_nan=False)
    return decode(snapshot, "part")


def types_in(value: Any) -> object:
    """Return the types of nested values, since 1, 1.0 and True are equal."""
    if isinstance(value, dict):
        return type(value), sorted(repr((types_in(key), types_in(item))) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return type(value), getattr(value, "maxlen", None), sorted(repr(types_in(item)) for item in value)
    return type(value)


hashable = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
plain = st.recursive(
    hashable | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(hashable | st.just("$tensor"), inner)
        | st.tuples(inner, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
        | st.dictionaries(hashable, st.integers()).map(Counter)
        | st.lists(inner).map(lambda items: deque(items, 5))
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_is_restored_with_its_types(value: object) -> None:
    found = back(value)

    assert found == value
    assert types_in(found) == types_in(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324, 2**200])
def test_unusual_numbers_are_restored(value: float) -> None:
    assert repr(back([value])) == repr([value])
    assert math.isnan(back(math.nan))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_restored_tensors_share_no_memory_with_the_originals(dtype: torch.dtype) -> None:
    live = torch.arange(6).reshape(2, 3).to(dtype)
    snapshot = encode(1, {"part": {"tensor": live, "turned": live.T, "scalar": live[0, 0], "empty": live[:0]}})
    kept = live.clone()
    live.zero_()

    found = decode(snapshot, "part")
    assert torch.equal(found["tensor"], kept)
    assert torch.equal(found["turned"], kept.T)
    assert found["scalar"].shape == ()
    assert found["empty"].shape == (0, 3)
    found["tensor"].zero_()
    assert torch.equal(decode(snapshot, "part")["tensor"], kept)


def test_tied_tensors_are_stored_once_and_restored_as_tied() -> None:
    weight = torch.ones(3)
    snapshot = encode(1, {"part": {"a": weight, "b": weight, "c": weight.clone()}})

    assert len(snapshot.tensors) == 2
    found = decode(snapshot, "part")
    assert found["a"] is found["b"]
    assert found["a"] is not found["c"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool", ">i4"])
def test_restored_arrays_and_numpy_scalars_share_no_memory_with_the_originals(dtype: str) -> None:
    live = np.arange(6).astype(dtype).reshape(2, 3)[:, ::2]
    snapshot = encode(1, {"part": [live, live[1, 1], np.empty((0, 2), dtype)]})
    kept = live.copy()
    live[:] = 0

    array, scalar, empty = decode(snapshot, "part")
    np.testing.assert_array_equal(array, kept)
    assert array.dtype == kept.dtype.newbyteorder("=")
    assert scalar == kept[1, 1]
    assert empty.shape == (0, 2)


def drawn(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1)]
    return generator.normal(size=3).tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.MT19937(3)),
        lambda: np.random.RandomState(3),
        lambda: torch.Generator().manual_seed(3),
    ],
    ids=["random", "numpy", "mersenne", "legacy", "torch"],
)
def test_restored_random_generators_continue_their_sequence(make: Any) -> None:
    generator = make()
    drawn(generator)
    snapshot = encode(1, {"part": generator})
    expected = [drawn(generator) for _ in range(3)]

    again = decode(snapshot, "part")
    assert [drawn(again) for _ in range(3)] == expected


between = st.one_of(
    st.integers(1, 3000).map(torch.zeros),
    st.integers(1, 3000).map(np.zeros),
    st.integers().map(random.Random),
    st.integers(0, 2**32 - 1).map(np.random.default_rng),
    st.integers(0, 2**32 - 1).map(lambda seed: torch.Generator().manual_seed(seed)),
)


@given(st.lists(between, min_size=2, max_size=12))
def test_generators_and_tensors_in_one_state_are_distinguished(values: list[Any]) -> None:
    found = decode(encode(1, {"part": {"list": values, "again": dict(enumerate(values))}}), "part")

    def is_generator(value: Any) -> bool:
        return not isinstance(value, (torch.Tensor, np.ndarray))

    expected = [drawn(value) for value in values if is_generator(value)]
    assert [drawn(value) for value in found["list"] if is_generator(value)] == expected
    assert [drawn(value) for value in found["again"].values() if is_generator(value)] == expected


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [0, {"b": object()}]}, "part/a/1/b is a builtins.object"),
        ({"rows": OrderedDict()}, "part/rows is a collections.OrderedDict"),
        ([lambda: None], "part/0 is a builtins.function"),
        (np.array(["text"]), "part is an array of <U4"),
        (torch.eye(2).to_sparse(), "part is a torch.sparse_coo tensor"),
        (torch.zeros(1, dtype=torch.complex128), "part is a torch.complex128 tensor"),
        ({"n": 10**5000}, "part/n is a 16610-bit integer"),
    ],
)
def test_unsupported_value_is_refused_with_its_path(value: object, named: str) -> None:
    with pytest.raises(CheckpointError, match="the state ") as caught:
        encode(1, {"part": value})
    assert named in str(caught.value)


@pytest.mark.parametrize("key", ["\ud800", "ü", "a/b"])
def test_tensors_under_arbitrary_keys_are_restored(key: str) -> None:
    snapshot = encode(1, {"part": {key: torch.ones(2)}})

    assert all(name.encode() for name in snapshot.tensors)
    assert decode(snapshot, "part")[key].tolist() == [1.0, 1.0]


def test_recursive_state_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(CheckpointError, match="deeper than 100 levels"):
        encode(1, {"part": circle})


@pytest.mark.parametrize(
    "tree",
    [
        {"$tensor": "nowhere"},
        {"$function": "os.system"},
        {"$generator": {"kind": "numpy", "state": {"bit_generator": "seed"}}},
        {"$generator": {"kind": "os"}},
        {"$bytes": "?"},
        {"$dict": [1]},
    ],
)
def test_invalid_encoded_tree_is_reported_as_damage(tree: object) -> None:
    snapshot = encode(1, {"part": None})
    damaged = type(snapshot)(step=1, parts={"part": [tree]})
    with pytest.raises(CheckpointError, match="part 'part' of the checkpoint of step 1 is damaged"):
        decode(damaged, "part")
