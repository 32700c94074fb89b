"""Waits of a weight sync: reminders at their own times, and no longer than the deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hooktrainer.weight_sync import waiting


class EarlyCondition(threading.Condition):
    """Moves a clock instead of waiting, and returns a little early, as the operating system may."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout * 0.99 if timeout > 0.001 else timeout + 0.001
        return bool(predicate())


@pytest.mark.parametrize(("seconds", "reminders"), [(0.05, 0), (59.0, 0), (61.0, 1), (150.0, 2)])
def test_a_reminder_is_logged_every_minute_and_at_no_other_deadline(
    seconds: float, reminders: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = EarlyCondition()
    monkeypatch.setattr(waiting, "monotonic", lambda: changed.now)

    assert not waiting.wait_until(changed, lambda: False, seconds, lambda: "rollout-0")

    assert [record.getMessage() for record in caplog.records] == [
        "weight sync is still waiting for rollout-0"
    ] * reminders
    assert changed.now >= 100 + seconds


def test_a_wait_ends_with_its_condition() -> None:
    changed = threading.Condition()
    with changed:
        assert waiting.wait_until(changed, lambda: True, 60.0, lambda: "")
