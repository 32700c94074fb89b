"""Buckets: tensors are cast once, tied ones are sent once, and the bucket size bounds the memory."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hooktrainer.errors import SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.weight_sync import copying
from hooktrainer.weight_sync.buckets import Bucket, BucketedWeights
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.copying import copy_with_checksums
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
from hooktrainer.weight_sync.same_host import SameHostTransport

MB = 10**6


class Allocations(TorchDispatchMode):
    """Counts the bytes of all tensors made while it is active, and the most at any one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: object, types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()).data_ptr() not in given:
                self._count(storage)
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, nbytes: int) -> None:
        self.now -= nbytes


class Parameters(nn.Module):
    def __init__(self, count: int, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for number in range(count):
            self.register_parameter(f"p{number}", nn.Parameter(torch.ones(size, dtype=dtype)))


class Recorder(DoubleBuffer):
    """A double buffer that records the size of each bucket."""

    def __init__(self, module: type[nn.Module], *args: object) -> None:
        modules = ModulePair(lambda: module(*args))
        super().__init__([full_state(own) for own in modules.modules], modules)
        self.modules = modules
        self.sizes: list[int] = []

    def stage(self, weights: Mapping[str, Tensor], version: int) -> Mapping[str, int]:
        self.sizes.append(sum(tensor.nbytes for tensor in weights.values()))
        return super().stage(weights, version)


class TestBuckets:
    """Four parameters of 10 MB: limits of 20 and of 5 MB."""

    @pytest.mark.parametrize(
        ("limit", "sizes"), [(20 * MB, [20 * MB] * 2), (5 * MB, [10 * MB] * 4), (25 * MB, [20 * MB] * 2)]
    )
    def test_bucket_stays_within_its_limit_and_a_larger_tensor_has_its_own_bucket(
        self, limit: int, sizes: list[int]
    ) -> None:
        weights, engine = full_state(Parameters(4, 2_500_000)), Recorder(Parameters, 4, 2_500_000)
        metrics = SameHostTransport().publish(weights, 0, [engine], bucket_bytes=limit)
        assert engine.sizes == sizes
        assert metrics["weight_sync/buckets"].value == len(sizes)
        assert metrics["weight_sync/bytes"].value == 40 * MB

    @pytest.mark.parametrize("limit", [20 * MB, 5 * MB])
    def test_extra_memory_of_copied_tensors_stays_within_one_bucket(self, limit: int) -> None:
        weights = {name: torch.ones(2, 2_500_000).t()[::2] for name in ("p0", "p1", "p2", "p3")}  # in another order
        spec = {name: torch.empty(1_250_000, 2, device="meta") for name in weights}
        allocations = Allocations()
        with allocations:
            for (bucket,) in BucketedWeights(weights, [spec], limit).buckets():
                assert allocations.now == sum(tensor.nbytes for tensor in bucket.values())
                del bucket
        gc.collect()
        assert allocations.now == 0
        assert allocations.peak == max(limit, 10 * MB)

    def test_tensors_without_a_cast_are_not_copied_twice(self) -> None:
        weights, engine = full_state(Parameters(4, 2_500_000)), Recorder(Parameters, 4, 2_500_000)
        transport, allocations = SameHostTransport(), Allocations()
        with allocations:
            transport.publish(weights, 0, [engine], bucket_bytes=20 * MB)
        assert allocations.peak < MB

    def test_cast_allocates_one_bucket_at_a_time(self) -> None:
        weights = full_state(Parameters(4, 2_500_000))
        engine = Recorder(Parameters, 4, 2_500_000, torch.bfloat16)
        allocations = Allocations()
        with allocations:
            SameHostTransport().publish(weights, 0, [engine], bucket_bytes=10 * MB)
        assert engine.sizes == [10 * MB] * 2
        assert allocations.peak < 12 * MB  # a bucket, and the block of float64 that casts are compared in

    @given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 60))
    def test_every_tensor_is_in_exactly_one_bucket_in_order(self, sizes: list[int], limit: int) -> None:
        weights = {str(place): torch.zeros(size, dtype=torch.uint8) for place, size in enumerate(sizes)}
        buckets = [dict(bucket) for (bucket,) in BucketedWeights(weights, [None], limit).buckets()]
        assert [name for bucket in buckets for name in bucket] == list(weights)
        for bucket in buckets:
            assert len(bucket) == 1 or sum(tensor.nbytes for tensor in bucket.values()) <= limit
        for one, following in pairwise(buckets):
            first = next(iter(following.values()))
            assert sum(tensor.nbytes for tensor in one.values()) + first.nbytes > limit


class Tied(nn.Module):
    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(4))
        self.head = self.embedding if tied else nn.Parameter(torch.zeros(4))


class TestTies:
    def test_a_tied_tensor_is_sent_once(self) -> None:
        source, engine = Tied(), Recorder(Tied)
        with torch.no_grad():
            source.embedding.fill_(2.0)
        metrics = SameHostTransport().publish(full_state(source), 1, [engine])
        assert metrics["weight_sync/bytes"].value == 16
        assert engine.modules.in_use.head.tolist() == [2.0] * 4

    def test_engine_without_tied_weights_receives_both_tensors(self) -> None:
        source, engine = Tied(), Recorder(lambda: Tied(tied=False))
        with torch.no_grad():
            source.embedding.fill_(2.0)
        metrics = SameHostTransport().publish(full_state(source), 1, [engine])
        module = engine.modules.in_use
        assert module.embedding.tolist() == module.head.tolist() == [2.0] * 4
        assert metrics["weight_sync/bytes"].value == 16

    def test_different_weights_for_tied_tensors_of_an_engine_are_refused(self) -> None:
        source, engine = full_state(Tied(tied=False)), Recorder(Tied)
        SameHostTransport().publish(source, 1, [engine])
        source["head"][2] = 1.0
        with pytest.raises(SyncError, match="'embedding' and 'head' are one tensor in the engine, but differ"):
            SameHostTransport().publish(source, 2, [engine])
        assert engine.version == 1


class TestFit:
    def test_all_faults_are_named_together(self) -> None:
        spec = {"layers.0": torch.zeros(2), "count": torch.zeros(1, dtype=torch.int64), "w": torch.zeros(2, 3)}
        weights = {"layer.0": torch.zeros(2), "count": torch.zeros(1), "w": torch.zeros(3, 2)}
        with pytest.raises(SyncError) as caught:
            BucketedWeights(weights, [spec], 100)
        assert str(caught.value) == (
            "weights do not fit the engine: 'layers.0' is missing; 'layer.0' is unknown to the engine. Did you mean "
            "'layers.0'?; 'count' is torch.float32, the engine's torch.int64; 'w' has shape (3, 2), the engine's (2, 3)"
        )

    def test_weights_without_any_matching_name_are_refused_with_the_counts(self) -> None:
        spec = {f"layers.{number}.weight": torch.zeros(1) for number in range(4)}
        with pytest.raises(
            SyncError, match=r"matched 0 of 4 of its tensors; the learner's names are 'adapter\.a', the engine's"
        ):
            BucketedWeights({"adapter.a": torch.zeros(1)}, [spec], 100)

    def test_weights_that_share_memory_with_the_engine_are_refused(self) -> None:
        engine = Recorder(Parameters, 1, 3)
        with pytest.raises(SyncError, match="'p0' shares memory with the engine's own copy"):
            SameHostTransport().publish(engine.spec(), 1, [engine])


class TestCasts:
    def test_cast_rounds_to_even_and_its_error_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        class Halves(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
                self.register_buffer("count", torch.tensor(0))

        engine, transport = Recorder(Halves), SameHostTransport()
        count = torch.tensor(2**53 + 1)  # no floating-point number of 64 bits holds it
        with caplog.at_level(logging.WARNING):
            for version in range(2):
                weights = {"p": torch.tensor([1.0, 1.00390625, 1.01171875]) + 8 * version, "count": count + version}
                metrics = transport.publish(weights, version, [engine])
                if version == 0:
                    assert engine.modules.in_use.p.tolist() == [1.0, 1.0, 1.015625]
                    assert engine.modules.in_use.count == count
                    assert metrics["weight_sync/cast_error"].value == 0.00390625
        assert [record.getMessage() for record in caplog.records] == [
            "1 of 2 tensors are cast to the dtype of engine 0; largest error 0.00390625"
        ]

    @pytest.mark.parametrize(
        ("values", "error"),
        [([torch.nan, torch.inf, 1.0], 0.0), ([70_000.0], torch.inf), ([], 0.0), (1.0009765625, 0.0)],
    )
    def test_cast_error_to_half_precision_is_measured(self, values: object, error: float) -> None:
        weights = {"p": torch.tensor(values)}
        bucketed = BucketedWeights(weights, [{"p": torch.empty_like(weights["p"], dtype=torch.float16)}], 100)
        list(bucketed.buckets())
        assert bucketed.receivers[0].cast_error == error


def odd_tensors() -> dict[str, Tensor]:
    return {
        "matrix": torch.randn(3, 5),
        "turned": torch.randn(5, 3).t(),
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
        "half": torch.randn(7).to(torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "count": torch.tensor(2**53 + 1),
        "complex": torch.randn(3, dtype=torch.complex64),
        "nan": torch.tensor([torch.nan, -0.0]),
    }


class TestChecksums:
    def test_copies_have_the_checksum_and_bytes_of_the_sender(self) -> None:
        source = odd_tensors()
        ((bucket,),) = BucketedWeights(source, [None], 10**6).buckets()
        target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
        assert copy_with_checksums(target, bucket) == bucket.checksums()
        for name, tensor in source.items():
            assert checksum(tensor) == checksum(target[name]), name
            assert torch.equal(tensor.isnan(), target[name].isnan()), name
            assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(target[name])), name

    def test_target_with_another_memory_layout_is_filled(self) -> None:
        target = {"w": torch.zeros(5, 3).t()}
        source = {"w": torch.arange(15.0).view(3, 5)}
        assert copy_with_checksums(target, source) == {"w": checksum(source["w"])}
        assert torch.equal(target["w"], source["w"])

    @settings(max_examples=30)
    @given(st.integers(0, 5 * 64), st.sampled_from([torch.uint8, torch.float32]), st.integers(0, 2**30))
    def test_block_size_does_not_change_the_checksum(self, size: int, dtype: torch.dtype, seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, 200, size)
        tensor, block = torch.tensor(numbers, dtype=dtype), copying.BLOCK_BYTES
        copying.BLOCK_BYTES = 64
        try:
            bucket, target = Bucket({"w": tensor}), {"w": torch.zeros_like(tensor)}
            assert copy_with_checksums(target, bucket) == bucket.checksums() == {"w": checksum(tensor)}
        finally:
            copying.BLOCK_BYTES = block
        assert torch.equal(target["w"], tensor)

    def test_copy_by_several_threads_equals_copy_by_one(self) -> None:
        source = {str(number): torch.randn(300_000 * (1 + number)) for number in range(6)}
        target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
        bucket = Bucket(source)
        assert copy_with_checksums(target, bucket, threads=3) == bucket.checksums()
        assert all(torch.equal(target[name], tensor) for name, tensor in source.items())

    @given(st.integers(0, 8 * 4 * 1000 - 1))
    def test_one_flipped_bit_changes_the_checksum(self, bit: int) -> None:
        tensor = torch.zeros(1000)
        before = checksum(tensor)
        tensor.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        assert checksum(tensor) != before
