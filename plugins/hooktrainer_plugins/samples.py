"""Write a few answers of every step to a file that people read."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from attrs.validators import deep_iterable, ge, in_, instance_of, min_len

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RecordError, shortened
from hooktrainer.events import FitEnd, FitStart, IterationEnd, StepEnd
from hooktrainer.plugin import port
from hooktrainer.ports import LatestSamples, Prompt, RunState, SampleLog, Trajectory

_LOG: Final = logging.getLogger("hooktrainer")


def _score(answer: Trajectory) -> float:
    return -math.inf if math.isnan(answer.score) else answer.score


_VALUES: Final[Mapping[str, Callable[[Trajectory], float]]] = {
    "best": _score,
    "worst": lambda answer: -_score(answer),
    "random": lambda _: 0.0,
    "longest": lambda answer: answer.length,
}
"""The value of an answer that each rule maximizes."""
RULES: Final = tuple(_VALUES)


@attrs.frozen(eq=False)
class Candidate:
    """An answer that may be chosen."""

    prompt: Prompt
    answer: Trajectory
    draw: float
    """A random number from 0 to 1, which decides between equal answers."""
    group: int | None = None
    """Number of the group of a trained answer."""
    staleness: int | None = None


@attrs.define(kw_only=True)
class Samples(Plugin):
    """Write a few trained and validated answers of a step to `samples.jsonl` in the run directory.

    A resumed run removes the lines after its checkpoint. If lines cannot be written, the run continues without them.
    """

    every: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Steps between samples; the last step always has some."""

    rules: Sequence[str] = attrs.field(
        default=RULES, converter=tuple, validator=[min_len(1), deep_iterable(in_(RULES))]
    )
    """How answers are chosen: `best` and `worst` by score, `random` by the seed of the run and the step, `longest`."""

    count: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Answers that each rule chooses, among those that are trained in a step and among those that are validated."""

    tokens: bool = False
    """Whether lines have the tokens of the answer, and for answers of several turns the mask of those it sampled."""

    max_characters: int = attrs.field(default=10_000, validator=[instance_of(int), ge(100)])
    """Characters of a prompt, an answer and a turn; longer texts are cut in the middle."""

    console: bool = False
    """Whether the samples are also printed."""

    samples: LatestSamples = port()
    log: SampleLog = port()
    run: RunState = port()

    _step: int = attrs.field(default=0, init=False, repr=False)  # the step that candidates are collected for
    _trained: dict[str, list[Candidate]] = attrs.field(factory=dict, init=False, repr=False)  # by rule, best first
    _written: int = attrs.field(default=0, init=False, repr=False)  # the last step that was written
    _writable: bool = attrs.field(default=True, init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE + 50, needs=["run.restored?"])
    def open(self, _event: FitStart) -> None:
        """Open the file, and remove the lines of steps that a resumed run makes again."""
        self.samples.keep()
        self.log.open()
        total = self.run.total_steps
        if self.run.resume != "off" and (total is None or self.run.step < total):
            self.log.rewind(self.run.step)

    @on(IterationEnd, priority=Priority.COLLECT)
    def choose_trained(self, event: IterationEnd) -> None:
        """Keep the answers that the rules choose among those of this and earlier updates of the step."""
        if event.step != self._step:
            self._step, self._trained = event.step, {}
        rng = np.random.default_rng([self.run.seed, event.step, event.iteration])
        found = [
            Candidate(group.prompt, answer, draw, group.number, group.staleness(event.step))
            for group in self.samples.trained
            for answer, draw in zip(group.trajectories, rng.random(len(group.trajectories)).tolist(), strict=True)
        ]
        self._trained = {rule: self._best(rule, [*self._trained.get(rule, ()), *found]) for rule in self.rules}

    @on(StepEnd, priority=Priority.REPORT, every="every")
    def write(self, event: StepEnd) -> None:
        """Write the samples of the step."""
        self._write(event.step)

    @on(FitEnd, priority=Priority.REPORT)
    def write_unreported(self, event: FitEnd) -> None:
        """Write the samples of the last complete step if the run ended before its REPORT band."""
        if event.record is not None and self._written < event.step == self._step:
            self._write(event.step)

    def _write(self, step: int) -> None:
        rng = np.random.default_rng([self.run.seed, step])
        validated = [Candidate(prompt, answer, rng.random()) for prompt, answer in self.samples.validated]
        by_rule = {rule: self._best(rule, validated) for rule in self.rules}
        lines = [*self._lines("trained", self._trained), *self._lines("validated", by_rule)]
        try:
            if self._writable:
                self.log.write(step, lines)
        except RecordError as error:
            self._writable = False
            _LOG.warning("step %d: %s. The run continues without samples", step, error)
        self._written, self._trained = step, {}
        if self.console:
            self.log.show(step, lines)

    def _best(self, rule: str, candidates: Iterable[Candidate]) -> list[Candidate]:
        value = _VALUES[rule]
        return heapq.nlargest(self.count, candidates, key=lambda candidate: (value(candidate.answer), candidate.draw))

    def _lines(self, kind: str, by_rule: Mapping[str, Sequence[Candidate]]) -> list[dict[str, Any]]:
        """Return one line for each answer, which several rules may have chosen."""
        chosen: dict[int, tuple[Candidate, list[str]]] = {}
        for rule, candidates in by_rule.items():
            for candidate in candidates:
                chosen.setdefault(id(candidate), (candidate, []))[1].append(rule)
        return [{"kind": kind, "chosen": rules, **self._line(candidate)} for candidate, rules in chosen.values()]

    def _line(self, candidate: Candidate) -> dict[str, Any]:
        example, answer = candidate.prompt.example, candidate.answer
        sampled = answer.versions if answer.loss_mask is None else answer.versions[answer.loss_mask]
        line: dict[str, Any] = {
            "score": _number(answer.score),
            "exact": answer.exact,
            "metrics": {name: _number(value) for name, value in answer.metrics.items()},
            "length": answer.length,
            "truncated": answer.truncated,
            "versions": [int(sampled[0]), int(sampled[-1])] if len(sampled) else [],
            "staleness": candidate.staleness,
            "group": candidate.group,
            "source": example.source,
            "example": example.number,
            "prompt": self._cut(example.text),
            "answer": self._cut(answer.text),
        }
        if answer.turns:
            speakers = ("policy", "environment")
            line["turns"] = [
                {"from": speakers[place % 2], "text": self._cut(text)} for place, text in enumerate(answer.turns)
            ]
        if self.tokens:
            line["tokens"] = answer.tokens.tolist()
            line |= {} if answer.loss_mask is None else {"loss_mask": answer.loss_mask.astype(int).tolist()}
        return line

    def _cut(self, text: str) -> str:
        return shortened(text, self.max_characters)


def _number(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return float(value) if math.isfinite(value) else None
