"""Settings for all tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Small tensors gain nothing from threads, and lose much when tests share the loops. Must be set before importing torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiling the package again in every process that a test starts would take longer than most tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Under `nohup`, or in the background of a script, these signals are ignored, also in processes that tests start.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# A deadline would measure the machine, not the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let measurements take hours. Any other test that hangs is ended, and named, by the limit in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("proof"):
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """Fail a test that leaves a thread of the product behind, which a later test would find."""
    before = set(threading.enumerate())
    yield
    own = [one for one in threading.enumerate() if type(one).__module__.startswith("hooktrainer")]
    for thread in set(own) - before:
        thread.join(20)
        assert not thread.is_alive(), f"the test left {thread.name} behind"
