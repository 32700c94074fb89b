"""Checkpoints on the disk: incomplete ones are skipped, retention, kills and full disks."""

from __future__ import annotations

import builtins
import itertools
import json
import logging
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from hooktrainer._util import files
from hooktrainer.checkpoint import file_format
from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.checkpoint.store import Store, load
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import BestMetric, Retention, Snapshot

SCORE = BestMetric("score")


def snapshot(step: int) -> Snapshot:
    return encode(
        step, {"learner": {"w": torch.full((100,), float(step))}, "plugins": {"n": step, "a": np.arange(step)}}
    )


def step_of(found: Snapshot) -> int:
    """Return the step of a snapshot, and check that all parts are of this step."""
    learner, plugins = decode(found, "learner"), decode(found, "plugins")
    assert learner["w"].tolist() == [float(found.step)] * 100
    assert (plugins["n"], len(plugins["a"])) == (found.step, found.step)
    return found.step


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def newest(store: Store, **options: bool) -> int | None:
    found = store.load_newest(**options)
    return None if found is None else step_of(found.snapshot)


def kept(store: Store) -> set[int]:
    return {int(path.name.removeprefix("step_")) for path in store.root.glob("step_" + "[0-9]" * 8)}


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def damage(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


FILES = ("tensors.safetensors", "arrays.safetensors", "state.json", "manifest.json")


class TestLoadNewest:
    def test_empty_or_missing_directory_has_no_checkpoint(self, store: Store) -> None:
        assert newest(store) is None
        store.root.mkdir()
        assert newest(store) is None

    @pytest.mark.parametrize("pointer", ["step_00000004\n", "", "step_00000009\n", "\xff", None])
    def test_incomplete_checkpoint_is_skipped_for_any_content_of_latest(
        self, store: Store, pointer: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.save(snapshot(4))
        path = store.save(snapshot(5))
        for name in ("state.json", "manifest.json"):  # killed after the model, before the plugin states
            (path / name).unlink()
        (store.root / "latest").unlink()
        if pointer is not None:
            (store.root / "latest").write_text(pointer, encoding="latin-1")

        assert newest(store) == 4
        assert "resuming from step 4; the checkpoint of step 5 is incomplete" in said(caplog)

    @pytest.mark.parametrize("trace", ["pointer", "set aside", "empty pointer"])
    def test_new_run_is_refused_if_traces_of_a_checkpoint_remain(
        self, store: Store, trace: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = store.save(snapshot(4))
        if trace == "set aside":
            store.prepare(3)
            (store.root / "latest").unlink()
        else:
            shutil.rmtree(path)
            (store.root / "latest").write_text("step_00000004\n" if trace == "pointer" else "")

        expected = (
            "step_00000004.set_aside was set aside" if trace == "set aside" else "latest contains '.*does not exist"
        )
        with pytest.raises(CheckpointError, match=f"no complete checkpoint, .*{expected}.*allow_fresh: true"):
            store.load_newest()
        assert store.load_newest(allow_fresh=True) is None
        assert "starting a new run" in said(caplog)

    @pytest.mark.parametrize("how", ["gone", "empty", "truncated", "longer", "flipped"])
    @pytest.mark.parametrize("name", FILES)
    def test_damage_to_any_file_is_detected_and_the_previous_checkpoint_loaded(
        self, store: Store, name: str, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.save(snapshot(4))
        damage(store.save(snapshot(5)) / name, how)

        assert newest(store) == 4
        assert name in said(caplog)

    def test_only_incomplete_checkpoints_are_an_error_without_allow_fresh(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        damage(store.save(snapshot(5)) / "state.json", "gone")

        with pytest.raises(
            CheckpointError, match=r"no complete checkpoint, .* state.json is missing.* allow_fresh: true"
        ):
            store.load_newest()
        assert newest(store, allow_fresh=True) is None
        assert "starting a new run" in said(caplog)

    def test_interrupted_first_save_is_an_incomplete_checkpoint(self, store: Store) -> None:
        (store.root / ".step_00000001.unfinished").mkdir(parents=True)

        with pytest.raises(CheckpointError, match="the save of step 1 was interrupted"):
            store.load_newest()

    def test_checkpoint_in_the_directory_of_another_step_is_refused(self, store: Store) -> None:
        store.save(snapshot(4)).rename(store.root / "step_00000007")

        with pytest.raises(CheckpointError, match="holds step 4, but its name has step 7"):
            store.load_newest()

    def test_checkpoint_with_a_file_of_another_one_is_refused(self, store: Store) -> None:
        first, second = store.save(snapshot(4)), store.save(snapshot(5))
        (first / "tensors.safetensors").replace(second / "tensors.safetensors")

        with pytest.raises(CheckpointError, match="checksum of tensors.safetensors is wrong"):
            Store.read(second)

    @pytest.mark.parametrize(("name", "found"), [("tensors.safetensors", 4), ("arrays.safetensors", 4)])
    def test_a_file_of_another_step_is_refused_by_its_own_stamp(self, store: Store, name: str, found: int) -> None:
        first, second = store.save(snapshot(4)), store.save(snapshot(5))
        shutil.copy(first / name, second / name)
        rewrite_manifest(second, name)

        with pytest.raises(CheckpointError, match=f"{name} is of step {found}, its manifest is of step 5"):
            Store.read(second)
        assert newest(store) == 4

    def test_the_state_of_another_step_is_refused_by_its_own_stamp(self, store: Store) -> None:
        first, second = store.save(snapshot(4)), store.save(snapshot(5))
        shutil.copy(first / "state.json", second / "state.json")
        rewrite_manifest(second, "state.json")

        with pytest.raises(CheckpointError, match=r"its parts are of the steps \[4\], its manifest is of step 5"):
            Store.read(second)

    @pytest.mark.parametrize("names", [FILES[:1], FILES[1:2], FILES[:2], FILES[2:3]], ids="+".join)
    def test_a_file_of_another_run_is_refused_though_its_step_is_the_same(
        self, store: Store, tmp_path: Path, names: tuple[str, ...]
    ) -> None:
        parts = {"learner": {"w": torch.full((100,), -4.0)}, "plugins": {"n": 4, "a": np.arange(4) + 1}}
        other, own = Store(tmp_path / "other").save(encode(4, parts)), store.save(snapshot(4))
        for name in names:
            shutil.copy(other / name, own / name)
            rewrite_manifest(own, name)

        with pytest.raises(
            CheckpointError, match=r"(tensors|arrays)\.safetensors is not the file that was saved with state"
        ):
            Store.read(own)

    def test_the_manifest_of_another_run_does_not_fit(self, store: Store, tmp_path: Path) -> None:
        parts = {"learner": {"w": torch.full((100,), -4.0)}, "plugins": {"n": 4, "a": np.arange(4) + 1}}
        other, own = Store(tmp_path / "other").save(encode(4, parts)), store.save(snapshot(4))
        shutil.copy(other / "manifest.json", own / "manifest.json")

        with pytest.raises(CheckpointError, match="the checksum of .* is wrong"):
            Store.read(own)

    def test_a_manifest_without_the_state_is_refused(self, store: Store) -> None:
        path = store.save(snapshot(4))
        (path / "state.json").rename(path / "kept")
        rewrite_manifest(path, "state.json")
        (path / "kept").rename(path / "state.json")

        with pytest.raises(CheckpointError, match=r"it does not list state\.json"):
            Store.read(path)

    def test_a_file_without_a_stamp_is_refused(self, store: Store) -> None:
        path = store.save(snapshot(4))
        safetensors.torch.save_file({"learner/w": torch.full((100,), 4.0)}, path / "tensors.safetensors")
        rewrite_manifest(path, "tensors.safetensors")

        with pytest.raises(CheckpointError, match=r"tensors\.safetensors has no stamp, its manifest is of step 4"):
            Store.read(path)

    @pytest.mark.parametrize("name", FILES[:2])
    def test_a_file_that_is_left_out_of_the_manifest_is_missed(self, store: Store, name: str) -> None:
        store.save(snapshot(3))
        path = store.save(snapshot(4))
        (path / name).unlink()
        rewrite_manifest(path, name)

        with pytest.raises(CheckpointError, match=f"{name} is not the file that was saved with state.json"):
            Store.read(path)
        assert newest(store) == 3

    def test_tensors_and_arrays_that_changed_places_are_refused(self, store: Store) -> None:
        path = store.save(snapshot(4))
        (path / "tensors.safetensors").rename(path / "kept")
        (path / "arrays.safetensors").rename(path / "tensors.safetensors")
        (path / "kept").rename(path / "arrays.safetensors")
        for name in FILES[:2]:
            rewrite_manifest(path, name)

        with pytest.raises(CheckpointError, match="is not the file that was saved with state"):
            Store.read(path)

    def test_a_checkpoint_may_be_moved_as_a_whole(self, store: Store, tmp_path: Path) -> None:
        path = store.save(snapshot(4)).rename(tmp_path / "step_00000004")
        assert step_of(Store.read(path)) == 4

    def test_prepare_sets_later_checkpoints_aside_and_removes_unfinished_saves(self, store: Store) -> None:
        for step in (3, 4, 5):
            store.save(snapshot(step))
        (store.root / ".step_00000006.unfinished").mkdir()

        store.prepare(4)

        assert sorted(path.name for path in store.root.iterdir()) == [
            "latest", "step_00000003", "step_00000004", "step_00000005.set_aside"
        ]  # fmt: skip
        assert step_of(Store.read(store.save(snapshot(5)))) == 5


class RunsCommandOnUnpickling:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch exploded",)


class TestNoCodeIsExecuted:
    @pytest.fixture(autouse=True)
    def inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        yield
        assert not Path("exploded").exists()

    def test_malicious_pickle_in_place_of_a_checkpoint_is_skipped(self, store: Store) -> None:
        store.save(snapshot(4))
        (store.root / "step_00000009").write_bytes(pickle.dumps(RunsCommandOnUnpickling()))
        torch.save({"a": RunsCommandOnUnpickling()}, store.root / "step_00000010")

        assert newest(store) == 4
        with pytest.raises(CheckpointError, match="incomplete or damaged"):
            load(store.root / "step_00000009")

    @pytest.mark.parametrize("name", FILES[:3])
    def test_malicious_pickle_with_a_valid_checksum_is_not_unpickled(self, store: Store, name: str) -> None:
        path = store.save(snapshot(4))
        bomb = pickle.dumps(RunsCommandOnUnpickling())
        (path / name).write_bytes(bomb)
        rewrite_manifest(path, name)

        with pytest.raises(CheckpointError, match="cannot be read"):
            Store.read(path)

    def test_malicious_pickle_given_as_path_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "model.pt").write_bytes(pickle.dumps(RunsCommandOnUnpickling()))
        with pytest.raises(CheckpointError, match="there is no checkpoint at"):
            load(tmp_path / "model.pt")

    def test_manifest_with_files_outside_the_checkpoint_is_refused(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("")
        path = store.save(snapshot(1))
        rewrite_manifest(path, "../../mine")
        store.save(snapshot(2))
        store.retain(Retention(keep_last=1))

        assert (tmp_path / "mine").exists()
        with pytest.raises(CheckpointError, match="lists files that are not part of a checkpoint"):
            Store.read(path)


def rewrite_manifest(path: Path, name: str) -> None:

    body = json.loads((path / "manifest.json").read_bytes())["body"]
    target = path / name
    body["files"].pop(name, None)
    if target.exists():
        body["files"][name] = {"bytes": target.stat().st_size, "xxh3_128": file_format._checksum(target)}
    whole = {"body": body, "xxh3_128": file_format._checksum_of(body)}
    (path / "manifest.json").write_bytes(file_format._to_json(whole))


class TestRetention:
    def saved(self, store: Store, scores: list[float | None], keep_last: int, best: BestMetric | None) -> set[int]:
        for step, score in enumerate(scores, start=1):
            store.save(snapshot(step), {} if score is None else {"score": score})
            store.retain(Retention(keep_last=keep_last, best=best))
        return kept(store)

    @pytest.mark.parametrize(
        ("scores", "keep_last", "best", "expected"),
        [
            ([0.9, 0.5, 0.6], 2, SCORE, {1, 2, 3}),
            ([0.9, 0.5, 0.6], 1, SCORE, {1, 3}),
            ([None, None, None], 1, SCORE, {3}),
            ([0.9, 0.5, 0.6], 1, BestMetric("score", "min"), {2, 3}),
            ([0.9, 0.5, 0.6], 1, None, {3}),
            ([0.9, 0.5, 0.6], 1, BestMetric("another"), {3}),
            ([0.9, 0.5, 0.6], -1, SCORE, {1, 2, 3}),
            ([0.5, None, 0.9, None, 0.7], 1, SCORE, {3, 5}),
            ([0.9, 0.9, 0.9], 1, SCORE, {1, 3}),
            ([0.1, 0.2, 0.3], 5, SCORE, {1, 2, 3}),
        ],
    )
    def test_retention_keeps_the_last_and_the_best_checkpoints(
        self, store: Store, scores: list[float | None], keep_last: int, best: BestMetric | None, expected: set[int]
    ) -> None:
        assert self.saved(store, scores, keep_last, best) == expected

    def test_retention_leaves_foreign_files_unchanged(self, store: Store, tmp_path: Path) -> None:
        store.root.mkdir()
        for name in ("step_00000000", "step_00000001_copy", "mine", "step_1", "step_00000001.set_aside"):
            (store.root / name).mkdir()
            (store.root / name / "file").write_text(name)
        (store.root / "step_00000002").write_text("a file")
        Store(tmp_path / "other").save(snapshot(3)).rename(store.root / "elsewhere")
        (store.root / "step_00000003").symlink_to(store.root / "elsewhere")
        before = sorted(path for path in store.root.rglob("*"))

        for step in (5, 6, 7):
            store.save(snapshot(step))
            store.retain(Retention(keep_last=1))

        assert sorted(path for path in store.root.rglob("*") if "step_00000007" not in str(path)) == sorted(
            [*before, store.root / "latest"]
        )

    def test_foreign_files_in_a_removed_checkpoint_are_kept(self, store: Store) -> None:
        (store.save(snapshot(1)) / "notes.txt").write_text("the good one")
        store.save(snapshot(2))
        store.retain(Retention(keep_last=1))

        assert [path.name for path in (store.root / "step_00000001").iterdir()] == ["notes.txt"]
        assert newest(store) == 2


def copy_that_fails(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


class TestFailures:
    @pytest.mark.parametrize("place", ["write", "sync", "rename"])
    def test_failed_save_leaves_only_the_previous_checkpoint(
        self, store: Store, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.save(snapshot(1))
        with monkeypatch.context() as patched:
            patched.setattr(files, place, copy_that_fails)
            with pytest.raises(CheckpointError, match=r"step 2 could not be written .*No space left.* are unchanged"):
                store.save(snapshot(2))
            # The caller does not come to retain(1).

        assert {path.name for path in store.root.iterdir()} == {"latest", "step_00000001"}
        assert newest(store) == 1
        store.save(snapshot(3))
        store.retain(Retention(keep_last=1))
        assert kept(store) == {3}

    @pytest.mark.parametrize("after_the_name", [False, True])
    def test_checkpoint_that_cannot_be_replaced_is_kept(
        self, store: Store, after_the_name: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.save(snapshot(1))
        store.save(snapshot(2), {"score": 1.0})
        rename = files.rename

        def fails(path: Path, target: Path) -> None:
            if path.name.endswith(".unfinished"):
                if after_the_name:
                    rename(path, target)
                raise OSError(5, "Input/output error")
            rename(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(files, "rename", fails)
            with pytest.raises(CheckpointError, match="step 2 could not be written .*Input/output"):
                store.save(snapshot(2), {"score": 2.0})

        assert {path.name for path in store.root.iterdir()} == {"latest", "step_00000001", "step_00000002"}
        assert store.best(BestMetric("score")) == (2, 1.0)
        assert newest(store) == 2

    def test_save_succeeds_if_latest_cannot_be_updated(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.save(snapshot(1))
        with monkeypatch.context() as patched:
            patched.setattr(files, "replace", copy_that_fails)
            store.save(snapshot(2))
        store.retain(Retention(keep_last=1))

        assert "step_00000002 is complete, but" in said(caplog)
        assert newest(store) == 2
        assert {path.name for path in store.root.iterdir()} == {"latest", "step_00000002"}

    def test_save_on_a_full_disk_raises_and_keeps_the_previous_checkpoint(self, tmp_path: Path) -> None:
        place = tmp_path / "small"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=False).returncode:
            pytest.skip("this machine lets nobody mount")
        try:
            store = Store(place / "checkpoints")
            store.save(encode(1, {"learner": torch.zeros(10_000)}))
            with pytest.raises(CheckpointError, match=r"(?i)no space left on device"):
                store.save(encode(2, {"learner": torch.zeros(60_000)}))
            assert store.load_newest().snapshot.step == 1
            assert {path.name for path in store.root.iterdir()} == {"latest", "step_00000001"}
            store.save(encode(3, {"learner": torch.zeros(10_000)}))
            assert store.load_newest().snapshot.step == 3
        finally:
            subprocess.run(["umount", place], check=True)

    def test_save_beyond_the_file_size_limit_raises_and_keeps_the_previous_checkpoint(self, store: Store) -> None:
        store.save(snapshot(1))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(CheckpointError, match=r"(?i)file too large"):
                store.save(encode(2, {"learner": torch.zeros(60_000)}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert newest(store) == 1

    def test_save_into_a_read_only_directory_raises(self, tmp_path: Path) -> None:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path], check=False).returncode:
            tmp_path.chmod(0o500)
            if os.access(tmp_path, os.W_OK):
                pytest.skip("this user may write anywhere, and may not mount")
        try:
            with pytest.raises(
                CheckpointError, match=r"step 1 could not be written to .*(Read-only|Permission denied)"
            ):
                Store(tmp_path / "checkpoints").save(snapshot(1))
        finally:
            tmp_path.chmod(0o700) if not os.path.ismount(tmp_path) else subprocess.run(["umount", tmp_path], check=True)


OPERATIONS = (
    (os, ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "rmdir", "unlink", "stat", "listdir")),
)


def kill_at(number: int) -> None:
    """Kill this process before the n-th file operation of a save."""
    counter = itertools.count(1)

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(counter) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for module, names in (*OPERATIONS, (safetensors.torch, ("save_file",)), (safetensors.numpy, ("save_file",))):
        for name in names:
            setattr(module, name, wrapped(getattr(module, name)))
    builtins.open = wrapped(builtins.open)  # type: ignore[assignment]


def saves_in_a_child(store: Store, number: int) -> bool:
    """Save step 5 in a child process that is killed at its n-th operation; return whether it was killed."""
    child = os.fork()
    if child == 0:
        kill_at(number)
        store.save(snapshot(5))
        store.retain(Retention(keep_last=1))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.slow
def test_kill_at_any_operation_of_a_save_keeps_a_checkpoint_and_allows_further_saves(tmp_path: Path) -> None:
    found: list[int] = []
    for number in itertools.count(1):
        store = Store(tmp_path / f"checkpoints{number}")
        store.save(snapshot(4))
        killed = saves_in_a_child(store, number)

        last = newest(store)
        assert last in (4, 5)
        found.append(last)
        store.prepare(last)
        store.save(snapshot(6))
        store.retain(Retention(keep_last=1))
        assert newest(store) == 6
        assert {path.name for path in store.root.iterdir()} <= {
            "latest", "step_00000006", ".latest.new", *(["step_00000005"] if last == 4 else [])
        }  # fmt: skip
        if not killed:
            break

    assert found == sorted(found)  # once it is published it stays
    assert found.count(4) > 20
    assert found.count(5) > 5


def test_loading_a_checkpoint_without_tensors_imports_no_torch(tmp_path: Path) -> None:
    Store(tmp_path).save(encode(1, {"plugins": {"n": 1, "a": np.arange(3)}}))
    script = (
        "import sys\nfrom pathlib import Path\nfrom hooktrainer.checkpoint.store import Store\n"
        f"assert Store(Path({str(tmp_path)!r})).load_newest().snapshot.step == 1\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_load_accepts_a_checkpoint_a_checkpoints_directory_or_a_run(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        path = store.save(snapshot(4))
        copy = path.rename(store.root / "the_good_one")
        store.save(snapshot(5))

    assert [load(place).snapshot.step for place in (copy, store.root, store.root.parent)] == [4, 5, 5]
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load(copy / "nothing")
