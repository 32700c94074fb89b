"""Double-buffered weights, in this process and in shared memory: copies, flips, and every kind of tensor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

import hooktrainer.weight_sync.double_buffer as weights_module
from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.rollout.process.shared_memory import allocate_shared
from hooktrainer.rollout.workers.engine import WorkerReaders
from hooktrainer.rollout.workers.flat_layout import FlatLayout, use_tensors
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
from hooktrainer.weight_sync.torn_reads import END_BYTES, Fingerprint, end_tensors

Make: TypeAlias = Callable[[Callable[[], nn.Module]], "Weights"]


class Weights(DoubleBuffer):
    """A double buffer with its modules, as an engine in one process has it."""

    def __init__(self, policy: Callable[[], nn.Module], share: bool, **options: float) -> None:
        modules = ModulePair(policy, **options)
        sets = [full_state(module) for module in modules.modules]
        if share:
            layout = FlatLayout.of(sets[0])
            sets = [layout.views(flat) for flat in allocate_shared(layout.nbytes, len(sets))]
            for module, tensors in zip(modules.modules, sets, strict=True):
                use_tensors(module, tensors)
        super().__init__(sets, modules)
        self.modules = modules
        self.reading = modules.reading


@pytest.fixture(params=[False, True], ids=["local", "shared"])
def make(request: pytest.FixtureRequest) -> Make:
    return partial(Weights, share=request.param)


class Three(nn.Module):
    """Three parameters whose values all equal their version."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.full((64,), -1.0)) for _ in range(3))


def versioned(version: int) -> dict[str, Tensor]:
    return {name: torch.full((64,), float(version)) for name in "abc"}


class TestDoubleBuffer:
    def test_readers_see_one_version_during_flips(self, make: Make) -> None:
        weights = make(Three)
        weights.stage(versioned(0), 0)
        weights.flip()
        done = threading.Event()
        seen: list[set[float]] = []
        versions: set[int] = set()

        def read() -> None:
            while not done.is_set():
                with weights.reading() as (module, version):
                    values = torch.cat([tensor.clone() for tensor in full_state(module).values()]).tolist()
                versions.add(version)
                if set(values) != {float(version)}:
                    seen.append(set(values) | {version})

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for version in range(1, 100):
            weights.stage(versioned(version), version)
            weights.flip()
        done.set()
        for reader in readers:
            reader.join()

        assert seen == []
        assert len(versions) > 1

    def test_reader_keeps_its_version_and_a_flip_does_not_wait_for_it(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, version):
            publish_to(weights, 2)
            assert weights.version == 2
            assert (version, module.a[0].item()) == (1, 1.0)
            with weights.reading() as (newer, _):
                assert newer.a[0].item() == 2.0

    def test_stage_waits_for_the_readers_of_its_buffer(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        events: list[str] = []
        with weights.reading() as (module, _):
            publish_to(weights, 2)

            def stage() -> None:
                weights.stage(versioned(3), 3)
                events.append("staged")

            stager = threading.Thread(target=stage)
            stager.start()
            stager.join(timeout=0.05)
            assert module.a[0].item() == 1.0
            events.append("read")
        stager.join()
        assert events == ["read", "staged"]

    def test_unflip_reverts_one_flip(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        publish_to(weights, 2)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)
        weights.stage(versioned(3), 3)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)

    def test_unflip_reverts_a_partial_flip(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        weights.stage(versioned(2), 2)
        use = weights.modules.use

        def fails(place: int, version: int) -> None:
            use(place, version)
            raise OSError("one of the readers is gone")

        monkeypatch.setattr(weights.modules, "use", fails)
        with pytest.raises(OSError, match="gone"):
            weights.flip()
        monkeypatch.undo()
        assert weights.version == 2
        assert value_of(weights) == (2, 2.0)
        weights.unflip()
        assert value_of(weights) == (1, 1.0)

    def test_unflip_restores_this_process_if_no_worker_is_left(self) -> None:
        class Dead:
            def use(self, place: int, version: int) -> None:
                raise RolloutError("the rollout workers have failed")

            def limit_waits(self) -> None: ...

        weights = Weights(Three, share=True)
        publish_to(weights, 1)
        publish_to(weights, 2)
        weights._readers = WorkerReaders(weights.modules, Dead())
        with pytest.raises(RolloutError):
            weights.unflip()

        assert weights.version == weights.modules.version == 1
        assert value_of(weights) == (1, 1.0)

    def test_an_unflip_interrupted_at_any_line_can_be_repeated(self, make: Make) -> None:
        places = 0
        while True:
            weights = make(Three)
            publish_to(weights, 1)
            publish_to(weights, 2)
            if not broken_off(weights.unflip, at=places):
                break
            places += 1
            weights.unflip()
            assert (weights.version, *value_of(weights)) == (1, 1, 1.0), places
        assert places > 5

    def test_a_reader_that_never_ends_fails_the_stage_and_is_named(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("hooktrainer.weight_sync.waiting.REMINDER_S", 0.1)
        weights = make(Three, sync_timeout_s=0.25)
        publish_to(weights, 1)
        inside, done = threading.Event(), threading.Event()

        def read() -> None:
            with weights.reading():
                inside.set()
                done.wait()

        reader = threading.Thread(target=read, name="rollout-7")
        reader.start()
        inside.wait()
        publish_to(weights, 2)
        awaited = "rollout-7 to finish answers that started two versions ago"
        with pytest.raises(SyncError, match=rf"waited 0\.25 s \(rollout\.sync_timeout_s\) for {awaited}\. Either"):
            weights.stage(versioned(3), 3)
        assert f"weight sync is still waiting for {awaited}" in caplog.text
        assert value_of(weights) == (2, 2.0)
        done.set()
        reader.join()
        publish_to(weights, 3)
        assert value_of(weights) == (3, 3.0)

    def test_staged_weights_share_no_memory_with_the_learner(self, make: Make) -> None:
        learner, weights = Three(), make(Three)
        with torch.no_grad():
            learner.a.fill_(2.0)
        weights.stage(full_state(learner), 1)
        with torch.no_grad():
            learner.a.add_(1.0)
        weights.flip()

        with weights.reading() as (module, _):
            assert module.a[0].item() == 2.0
            theirs, ours = full_state(module), full_state(learner)
            assert not {t.data_ptr() for t in theirs.values()} & {t.data_ptr() for t in ours.values()}
            assert not any(tensor.requires_grad for tensor in module.parameters())

    def test_a_policy_that_returns_the_same_module_twice_is_refused(self, make: Make) -> None:
        module = Three()
        with pytest.raises(ValueError, match="share memory"):
            make(lambda: module)

    def test_staging_the_engines_own_tensors_is_refused(self, make: Make) -> None:
        module = Three()
        made = iter([Three(), module])
        with pytest.raises(SyncError, match="'a' shares memory"):
            make(lambda: next(made)).stage(full_state(module), 1)


def broken_off(call: Callable[[], None], at: int) -> bool:
    """Interrupt a call at one of the lines that it runs in the module of the buffer; False if it runs fewer."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if frame.f_code.co_filename != weights_module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at + 1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def publish_to(weights: Weights, version: int) -> None:
    weights.stage(versioned(version), version)
    weights.flip()


def value_of(weights: Weights) -> tuple[int, float]:
    with weights.reading() as (module, version):
        return version, module.a[0].item()


class Odd(nn.Module):
    """A state with frozen, tied, empty, integer, boolean and half-precision tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 3))
        self.tied = self.w
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.brief = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(data=False))
        self.register_buffer("mean", torch.zeros(1), persistent=False)


class TestStates:
    def copy_with_checksums(self) -> Odd:
        source = Odd()
        with torch.no_grad():
            source.w.copy_(torch.arange(6.0).view(2, 3))
            source.frozen.fill_(3.0)
            source.brief.fill_(1.5)
            source.count.fill_(2**53 + 1)  # no float64 holds it
            source.flag.fill_(value=True)
            source.mean.fill_(0.25)
        return source

    def test_tensors_of_every_kind_arrive_in_every_sync(self, make: Make) -> None:
        source, weights = self.copy_with_checksums(), make(Odd)
        for version in range(3):
            weights.stage(full_state(source), version)
            weights.flip()
            with weights.reading() as (module, _):
                received = full_state(module)
                assert received.keys() == full_state(source).keys()
                for name, tensor in full_state(source).items():
                    assert torch.equal(received[name], tensor), name
                assert module.tied is module.w

    def test_nan_weights_are_delivered(self, make: Make) -> None:
        source, weights = self.copy_with_checksums(), make(Odd)
        with torch.no_grad():
            source.w.fill_(torch.nan)
        weights.stage(full_state(source), 0)
        weights.flip()
        with weights.reading() as (module, _):
            assert bool(module.w.isnan().all())

    def test_weights_may_have_any_memory_layout(self, make: Make) -> None:
        weights = make(Odd)
        values = dict(full_state(self.copy_with_checksums()))
        values["w"] = values["tied"] = torch.arange(6.0).view(3, 2).t()
        weights.stage(values, 0)
        weights.flip()
        with weights.reading() as (module, _):
            assert module.w.tolist() == [[0, 2, 4], [1, 3, 5]]

    @pytest.mark.parametrize(
        ("name", "tensor", "message"),
        [
            ("w", torch.zeros(3, 2), r"'w' has shape \(3, 2\), the engine's \(2, 3\)"),
            ("count", torch.tensor(1.0), "'count' is torch.float32, the engine's torch.int64"),
            ("count", torch.tensor(1, dtype=torch.int32), "'count' is torch.int32, the engine's torch.int64"),
            ("more", torch.zeros(1), "'more' is unknown to the engine"),
        ],
    )
    def test_tensor_of_the_wrong_shape_or_name_is_refused_and_named(
        self, make: Make, name: str, tensor: Tensor, message: str
    ) -> None:
        weights = make(Odd)
        with pytest.raises(SyncError, match=message):
            weights.stage({**full_state(self.copy_with_checksums()), name: tensor}, 0)
        assert weights.version == -1

    def test_stage_refuses_another_dtype(self, make: Make) -> None:
        weights = make(Odd)
        with pytest.raises(SyncError, match=r"'brief' is torch\.float32, the engine's torch\.bfloat16; the transport"):
            weights.stage({**full_state(self.copy_with_checksums()), "brief": torch.ones(2)}, 0)

    def test_buckets_of_another_version_restart_the_staging(self, make: Make) -> None:
        source, weights = full_state(self.copy_with_checksums()), make(Odd)
        names = [name for name in source if name != "tied"]  # it arrives with `w`
        for name in names[:-1]:
            assert weights.stage({name: source[name]}, 1) == {name: checksum(source[name])}
        with pytest.raises(SyncError, match="flip to version 1, but 1 of 8 tensors were not staged, such as 'mean'"):
            weights.flip()
        weights.stage({"w": source["w"]}, 2)
        with pytest.raises(SyncError, match="flip to version 2, but 6 of 8 tensors were not staged"):
            weights.flip()
        for name in names:
            weights.stage({name: source[name]}, 2)
        weights.flip()
        with weights.reading() as (module, version):
            assert version == 2
            for name, tensor in source.items():
                assert torch.equal(full_state(module)[name], tensor), name

    def test_checksums_are_computed_from_the_copy(self, make: Make) -> None:
        weights = make(Three)
        spare = weights.spec()["b"]

        class Overwritten(dict):
            def __getitem__(self, name: str) -> Tensor:
                tensor = super().__getitem__(name)
                return torch.zeros_like(tensor) if name == "b" else tensor

        held = weights.stage(Overwritten(versioned(1)), 1)
        assert held["a"] == checksum(versioned(1)["a"])
        assert held["b"] == checksum(spare) != checksum(versioned(1)["b"])


class TestPause:
    def test_no_reader_starts_during_a_pause(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        weights.pause()
        seen: list[int] = []

        def read() -> None:
            with weights.reading() as (_, version):
                seen.append(version)

        reader = threading.Thread(target=read)
        reader.start()
        weights.stage(versioned(2), 2)
        weights.flip()
        reader.join(timeout=0.05)
        assert seen == []
        weights.resume()
        reader.join()
        assert seen == [2]

    def test_a_pause_does_not_stop_present_readers(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, _):
            weights.pause()
            publish_to(weights, 2)
            assert module.a[0].item() == 1.0
        weights.resume()
        assert value_of(weights) == (2, 2.0)


class TestWitness:
    def test_fingerprint_of_a_published_version_passes(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, version):
            publish_to(weights, 2)
            weights.detector.check(7, {Fingerprint.of(version, end_tensors(full_state(module)))})

    @pytest.mark.parametrize("torn", ["a", "c"])
    def test_mixed_versions_are_detected_at_either_end(self, make: Make, torn: str) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, version):
            getattr(module, torn)[3] = 9.0
            fingerprint = Fingerprint.of(version, end_tensors(full_state(module)))
        with pytest.raises(
            SyncError, match="group 7 was sampled from torn weights: of version 1 the first and the last"
        ):
            weights.detector.check(7, {fingerprint})

    def test_weights_of_another_version_are_detected(self, make: Make) -> None:
        weights = make(Three)
        publish_to(weights, 1)
        with weights.reading() as (module, _):
            fingerprint = Fingerprint.of(2, end_tensors(full_state(module)))
        with pytest.raises(SyncError, match="of version 2 .* published were none"):
            weights.detector.check(7, {fingerprint})
        publish_to(weights, 2)
        with pytest.raises(SyncError, match="of version 2 .* published were 0x"):
            weights.detector.check(7, {fingerprint})

    def test_fingerprint_of_large_tensors_uses_the_outer_blocks(self) -> None:
        large = {"a": torch.zeros(END_BYTES), "empty": torch.zeros(0), "b": torch.zeros(END_BYTES)}
        before = Fingerprint.of(1, end_tensors(large))
        large["a"][0] = 1.0
        after = Fingerprint.of(1, end_tensors(large))
        large["b"][-1] = 1.0
        assert before.first != after.first
        assert after.last != Fingerprint.of(1, end_tensors(large)).last
        assert Fingerprint.of(1, end_tensors({})) == Fingerprint(1, 0, 0)
