"""The in-process transport: all engines or none."""

from __future__ import annotations

import attrs
import pytest
import torch

from hooktrainer import ports
from hooktrainer.errors import SyncError
from hooktrainer.transports.in_process import InProcess

WEIGHTS = {"w": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)}


@attrs.define(eq=False)
class Engine:
    """Writes down what is done to it; raises where it is told to."""

    name: str
    events: list[str]
    fails_on: str = ""
    error: BaseException = attrs.field(factory=lambda: ValueError("out of memory"))
    versions: list[int] = attrs.field(factory=lambda: [0])
    staged: int | None = None

    @property
    def version(self) -> int:
        return 99 if self.fails_on == "version" and len(self.versions) > 1 else self.versions[-1]

    def stage(self, weights: ports.Weights, version: int) -> None:
        self._do("stage")
        self.staged = version

    def flip(self) -> None:
        self._do("flip")
        assert self.staged is not None
        self.versions.append(self.staged)

    def unflip(self) -> None:
        self._do("unflip")
        del self.versions[1:]

    def _do(self, what: str) -> None:
        self.events.append(f"{self.name} {what}")
        if self.fails_on == what:
            raise self.error


def test_it_is_a_port() -> None:
    assert isinstance(InProcess(), ports.WeightTransport)


def test_every_engine_is_staged_before_any_flips() -> None:
    events: list[str] = []
    engines = [Engine("a", events), Engine("b", events)]

    metrics = InProcess().publish(WEIGHTS, 4, engines)

    assert events == ["a stage", "b stage", "a flip", "b flip"]
    assert [engine.version for engine in engines] == [4, 4]
    assert metrics["weight_sync/bytes"].value == 2 * (3 * 4 + 2 * 8)


@pytest.mark.parametrize(
    ("fails_on", "done"),
    [
        ("stage", ["a stage", "b stage", "a unflip"]),
        ("flip", ["a stage", "b stage", "a flip", "b flip", "a unflip", "b unflip"]),
        ("version", ["a stage", "b stage", "a flip", "b flip", "a unflip", "b unflip"]),
    ],
)
def test_a_failure_on_one_engine_takes_every_staged_one_back(fails_on: str, done: list[str]) -> None:
    events: list[str] = []
    engines = [Engine("a", events), Engine("b", events, fails_on)]

    with pytest.raises(SyncError, match="version 4 was not published") as caught:
        InProcess().publish(WEIGHTS, 4, engines)

    assert events == done
    assert [engine.versions for engine in engines] == [[0], [0]]
    assert isinstance(caught.value.__cause__, SyncError if fails_on == "version" else ValueError)


def test_the_next_publish_after_a_failure_succeeds() -> None:
    engine = Engine("a", [], "stage")
    with pytest.raises(SyncError):
        InProcess().publish(WEIGHTS, 1, [engine])
    engine.fails_on = ""
    InProcess().publish(WEIGHTS, 2, [engine])
    assert engine.version == 2


def test_an_interrupt_takes_all_back_and_stays_an_interrupt() -> None:
    events: list[str] = []
    engines = [Engine("a", events), Engine("b", events, "flip", KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        InProcess().publish(WEIGHTS, 4, engines)
    assert [engine.versions for engine in engines] == [[0], [0]]


def test_an_engine_that_cannot_go_back_keeps_no_other_from_it() -> None:
    events: list[str] = []
    engines = [Engine("a", events, "unflip"), Engine("b", events), Engine("c", events, "flip")]
    with pytest.raises(SyncError) as caught:
        InProcess().publish(WEIGHTS, 4, engines)
    assert events[-3:] == ["a unflip", "b unflip", "c unflip"]
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__notes__ == [
        "engine 0 could not go back to its old weights: ValueError('out of memory')"
    ]
