"""log_after_collect on the fake bus."""

from __future__ import annotations

import pytest

from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.testing import FakeBus, FakeSink, check_plugin
from hooktrainer_plugins.log_after_collect import LogAfterCollect


class BrokenSink(FakeSink):
    """Cannot write, or cannot close."""

    def write(self, step: int, row: object) -> None:
        raise OSError("disk full")

    def close(self) -> None:
        super().close()
        raise OSError("disk full")


def started(*sinks: FakeSink) -> FakeBus:
    bus = FakeBus(LogAfterCollect(sinks=sinks), provides=["metrics.row"])
    bus.fire(FitStart)
    return bus


def test_it_keeps_the_contract() -> None:
    check_plugin(LogAfterCollect)


def test_it_writes_the_sealed_row_of_each_step_once() -> None:
    bus = started(sink := FakeSink())

    bus.fire(StepEnd, step=1, row={"loss": 2.5})
    bus.fire(StepEnd, step=2, row={"loss": 6.5})

    assert sink.rows == [(1, {"loss": 2.5}), (2, {"loss": 6.5})]


def test_an_empty_row_is_not_written() -> None:
    bus = started(sink := FakeSink())

    bus.fire(StepEnd, step=1)

    assert sink.rows == []


def test_a_step_that_was_not_reported_is_written_at_the_end_before_sinks_close() -> None:
    bus = started(sink := FakeSink())

    bus.fire(FitEnd, step=3, status="failed", row={"loss": 1.0, "training/unscored": 1.0})

    assert sink.rows == [(3, {"loss": 1.0, "training/unscored": 1.0})]
    assert sink.state == "closed"


def test_a_sink_that_fails_neither_loses_the_others_their_row_nor_writes_twice() -> None:
    bus = started(first := FakeSink(), BrokenSink(), last := FakeSink())

    with pytest.raises(OSError, match="disk full"):
        bus.fire(StepEnd, step=1, row={"loss": 1.0})
    with pytest.raises(OSError, match="disk full"):
        bus.fire(FitEnd, step=1, status="failed", row={"loss": 1.0})

    assert first.rows == last.rows == [(1, {"loss": 1.0})]
    assert {first.state, last.state} == {"closed"}
