"""The pytest plugin that comes with the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hooktrainer.testing import FakeBus


@pytest.fixture
def fake_bus() -> Callable[..., FakeBus]:
    """Return the class `FakeBus`: `fake_bus(MyPlugin(), provides=["metrics.row"])`."""
    from hooktrainer.testing import FakeBus  # not at import: pytest loads this module in every project

    return FakeBus
