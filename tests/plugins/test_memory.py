"""memory on the fake bus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from hooktrainer.events import StepEnd
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.memory import ALLOCATED, PROCESS, RESERVED, Memory


def measured() -> dict[str, float]:
    bus = FakeBus(Memory(), provides=["metrics.row"])
    bus.fire(StepEnd, step=1)
    return {key: value for key, value in bus.row.items() if key.startswith("perf/max_memory")}


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Memory)


def test_the_peak_of_the_process_lies_between_its_memory_now_and_the_memory_of_the_machine() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    now = int(Path("/proc/self/statm").read_text().split()[1]) * page

    assert 0.9 * now <= measured()[PROCESS] * 1e9 < os.sysconf("SC_PHYS_PAGES") * page  # the kernel counts in batches


@pytest.mark.slow
def test_the_peak_of_the_process_grows_with_memory_in_use_and_stays_after_it_is_freed() -> None:
    """Run in a new process, whose peak no other test has raised."""
    program = textwrap.dedent(
        f"""
        import json
        import torch  # before the first step, since it takes memory itself
        from hooktrainer.events import StepEnd
        from hooktrainer.testing import FakeBus
        from hooktrainer_plugins.memory import Memory

        bus, peaks = FakeBus(Memory(), provides=["metrics.row"]), []
        for step, size in enumerate([0, 300_000_000, 0], start=1):
            used = b"x" * size
            del used
            bus.fire(StepEnd, step=step)
            peaks.append(bus.row[{PROCESS!r}])
        print(json.dumps(peaks))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, used, freed = json.loads(done.stdout)

    assert 0.01 < before < 3.0
    assert 0.2 < used - before < 0.31
    assert freed == pytest.approx(used, abs=0.01)


def test_a_process_without_gpu_reports_its_own_peak_only() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("this process uses a GPU")

    assert measured().keys() == {PROCESS}


def test_the_largest_peak_of_several_gpus_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated, reserved = [2_500_000_000, 1_000_000_000], [3_000_000_000, 4_000_000_000]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", allocated.__getitem__)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", reserved.__getitem__)

    found = measured()

    assert (found[ALLOCATED], found[RESERVED]) == (2.5, 4.0)
