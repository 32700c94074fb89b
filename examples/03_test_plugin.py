"""Test a plugin on the fake bus, without a trainer, torch or a GPU.

pytest examples/03_test_plugin.py
"""

import pytest
from kl_stop import KLStop

from hooktrainer.errors import PlanError
from hooktrainer.events import StepEnd
from hooktrainer.testing import FakeBus, check_plugin


def test_value_above_the_limit_stops_the_run() -> None:
    """Stop the run at a row above the limit, and only there."""
    bus = FakeBus(KLStop(limit=0.2), provides=["metrics.row"])

    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": 0.1})
    assert bus.control.reason is None

    bus.fire(StepEnd, step=2, row={"actor/ppo_kl": 0.5})
    assert bus.control.reason == "ppo_kl above 0.2"


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("-inf")])
def test_the_size_of_the_divergence_counts(value: float) -> None:
    """Stop the run at a negative estimate beyond the limit, and at NaN."""
    bus = FakeBus(KLStop(limit=0.2), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": value})
    assert bus.control.reason == "ppo_kl above 0.2"


def test_it_needs_a_plugin_that_makes_the_row() -> None:
    """Refuse a plan in which no plugin makes the row."""
    with pytest.raises(PlanError, match="needs 'metrics.row', which no handler makes"):
        FakeBus(KLStop())


def test_plugin_passes_check_plugin() -> None:
    """Pass the checks that every plugin must pass."""
    check_plugin(KLStop)
