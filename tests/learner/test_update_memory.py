"""Peak memory of an update with a vocabulary of 50,000 tokens."""

from __future__ import annotations

import sys

import pytest
from benchmarks.update_memory import measured


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_update_takes_little_more_memory_than_bare_passes_in_chunks() -> None:
    found = measured("bare", "update")
    assert found["update"]["peak"] <= 1.3 * found["bare"]["peak"]
