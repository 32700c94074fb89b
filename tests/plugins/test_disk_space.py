"""disk_space on the fake bus, with the real disk."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hooktrainer.errors import RunError
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.testing import FakeBus, FakeRunState, check_plugin
from hooktrainer_plugins.disk_space import GB, DiskSpace

SLACK_GB = 20.0
"""More than other processes write or delete on this disk during a test."""


def free_gb(directory: Path) -> float:
    return shutil.disk_usage(directory).free / GB


def test_plugin_passes_check_plugin() -> None:
    check_plugin(DiskSpace)


def test_too_little_space_stops_the_run_before_the_save_with_the_numbers(tmp_path: Path) -> None:
    guard = DiskSpace(keep_free_gb=free_gb(tmp_path) + SLACK_GB, run=FakeRunState(directory=tmp_path))
    bus = FakeBus(guard, provides=["metrics.row"])
    bus.fire(StepEnd, step=1)

    found = re.fullmatch(
        rf"{tmp_path} has ([\d.]+) GB free, and ([\d.]+) GB are needed: keep_free_gb = [\d.e+]+ and 0.000 GB for two "
        r"checkpoints\. Free some space, or lower keep_free_gb",
        bus.control.reason or "",
    )
    assert found is not None
    assert float(found[1]) == pytest.approx(free_gb(tmp_path), abs=SLACK_GB)
    assert float(found[2]) == pytest.approx(guard.keep_free_gb, abs=0.001)
    saving = [handler.label for handler in bus.plan.handlers[StepEnd] if handler.number >= 700]
    assert saving == ["disk_space.guard"]


def test_action_raise_raises(tmp_path: Path) -> None:
    guard = DiskSpace(keep_free_gb=free_gb(tmp_path) + SLACK_GB, action="raise", run=FakeRunState(directory=tmp_path))

    with pytest.raises(RunError, match="GB are needed"):
        FakeBus(guard, provides=["metrics.row"]).fire(StepEnd, step=1)


def test_too_little_space_at_fit_start_fails_the_run(tmp_path: Path) -> None:
    guard = DiskSpace(keep_free_gb=free_gb(tmp_path) + SLACK_GB, run=FakeRunState(directory=tmp_path))

    with pytest.raises(RunError, match="GB are needed"):
        FakeBus(guard, provides=["metrics.row"]).fire(FitStart)


def test_free_space_is_reported_if_it_is_enough(tmp_path: Path) -> None:
    bus = FakeBus(DiskSpace(keep_free_gb=0, run=FakeRunState(directory=tmp_path)), provides=["metrics.row"])
    bus.fire(FitStart)
    bus.fire(StepEnd, step=1)

    assert bus.control.reason is None
    assert bus.row["perf/disk_free_gb"] == pytest.approx(free_gb(tmp_path), abs=SLACK_GB)


def captured(directory: Path) -> FakeRunState:
    state = FakeRunState(directory=directory, state={"weights": np.zeros(1_000_000), "more": np.zeros(500_000)})
    state.capture(1)
    return state


@pytest.mark.parametrize(
    ("last", "needed"), [(False, "and 0.024 GB for two checkpoints. "), (True, "and 0.012 GB for a checkpoint. ")]
)
def test_required_space_includes_this_save_and_the_final_save(tmp_path: Path, last: bool, needed: str) -> None:
    guard = DiskSpace(keep_free_gb=free_gb(tmp_path) + SLACK_GB, run=captured(tmp_path))
    bus = FakeBus(guard, provides=["metrics.row"])
    bus.fire(StepEnd, step=1, last=last)

    assert needed in (bus.control.reason or "")


def test_fit_start_requires_space_for_one_checkpoint(tmp_path: Path) -> None:
    guard = DiskSpace(keep_free_gb=free_gb(tmp_path) + SLACK_GB, run=captured(tmp_path))

    with pytest.raises(RunError, match=r"and 0\.012 GB for a checkpoint\. "):
        FakeBus(guard, provides=["metrics.row"]).fire(FitStart)


def test_keep_free_gb_remains_free_after_the_final_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that nothing else writes to, and a checkpoint of 0.012 GB at the end of every step."""
    free = 200_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    bus = FakeBus(DiskSpace(keep_free_gb=0.1, run=captured(tmp_path)), provides=["metrics.row"])
    step = 0
    while bus.control.reason is None:
        step += 1
        bus.fire(StepEnd, step=step)
        free -= 12_000_000

    assert (step, free) == (8, 104_000_000)


def test_missing_path_fails_the_run_at_fit_start_and_names_the_option(tmp_path: Path) -> None:
    guard = DiskSpace(path=str(tmp_path / "nope"), run=FakeRunState(directory=tmp_path))

    with pytest.raises(RunError, match=r"disk_space\.path = '.*nope': .* No such file.* Give disk_space a `path`"):
        FakeBus(guard, provides=["metrics.row"]).fire(FitStart)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_does_not_report_its_space_is_not_watched(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("hooktrainer_plugins.disk_space.shutil.disk_usage", fails)
    guard = DiskSpace(run=FakeRunState(directory=tmp_path))
    bus = FakeBus(guard, provides=["metrics.row"])
    bus.fire(FitStart)
    bus.fire(StepEnd, step=1)

    (message,) = [record.getMessage() for record in caplog.records]
    assert message.endswith("disk_space has no effect")


def test_missing_run_directory_is_named(tmp_path: Path) -> None:
    guard = DiskSpace(run=FakeRunState(directory=tmp_path / "gone"))

    with pytest.raises(RunError, match="the run directory: the free space cannot be determined: .*gone"):
        FakeBus(guard, provides=["metrics.row"]).fire(StepEnd, step=1)


def test_option_path_sets_the_checked_disk(tmp_path: Path) -> None:
    guard = DiskSpace(path=str(tmp_path), keep_free_gb=free_gb(tmp_path) + SLACK_GB, run=FakeRunState())
    bus = FakeBus(guard, provides=["metrics.row"])
    bus.fire(StepEnd, step=1)

    assert (bus.control.reason or "").startswith(f"{tmp_path} has ")
