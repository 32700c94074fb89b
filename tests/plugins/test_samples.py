"""samples on the fake bus: which answers are chosen, and what their lines say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hooktrainer.errors import RecordError
from hooktrainer.events import FitEnd, FitStart, IterationEnd, StepEnd
from hooktrainer.ports import Example, Group, Prompt, Trajectory
from hooktrainer.replay.samples import KeptSamples
from hooktrainer.testing import FakeBus, FakeLatestSamples, FakeRunState, FakeSampleLog, check_plugin
from hooktrainer_plugins.samples import RULES, Samples


def answer(score: float, length: int = 3, **changed: Any) -> Trajectory:
    fields = {
        "tokens": np.arange(length),
        "logprobs": np.zeros(length, np.float32),
        "versions": np.full(length, 2),
        "text": f"scores {score:g}",
    }
    return Trajectory(score=score, **{**fields, **changed})


def group(number: int, *answers: Trajectory) -> Group:
    prompt = Prompt(Example(f"prompt {number}", number=number), np.zeros(1, np.int64))
    return Group(number=number, stamp=1, prompt=prompt, trajectories=answers)


class Run:
    """The plugin on the fake bus, and the lines that it writes."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.samples, self.log, self.state = FakeLatestSamples(), FakeSampleLog(), FakeRunState(seed=seed)
        self.plugin = Samples(samples=self.samples, log=self.log, run=self.state, **options)
        self.bus = FakeBus(self.plugin)

    def train(self, step: int, *iterations: Sequence[Group]) -> None:
        for iteration, groups in enumerate(iterations):
            self.samples.add_trained(groups)
            self.bus.fire(IterationEnd, step=step, iteration=iteration)

    def step(self, step: int, *iterations: Sequence[Group], last: bool = False) -> list[dict[str, Any]]:
        """Run a step, and return its lines."""
        self.train(step, *iterations)
        self.bus.fire(StepEnd, step=step, last=last)
        return [line for line in self.log.lines if line["step"] == step]


def chosen(lines: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the answers by rule."""
    return {rule: [line["answer"] for line in lines if rule in line["chosen"]] for rule in RULES}


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Samples)


def test_each_rule_chooses_among_the_answers_of_all_updates_of_a_step() -> None:
    first = [group(0, answer(0.25), answer(0.5, length=9))]
    second = [group(1, answer(-1.0), answer(0.75))]
    found = chosen(Run().step(2, first, second))

    assert (found["best"], found["worst"], found["longest"]) == (["scores 0.75"], ["scores -1"], ["scores 0.5"])
    assert len(found["random"]) == 1


def test_an_answer_that_several_rules_choose_is_one_line() -> None:
    (line,) = Run().step(1, [group(4, answer(1.0))])

    assert line["chosen"] == ["best", "worst", "random", "longest"]


def test_count_and_rules_are_options() -> None:
    answers = [answer(float(score)) for score in range(5)]
    lines = Run(count=2, rules=["worst", "best"]).step(1, [group(0, *answers)])

    assert [(line["answer"], line["chosen"]) for line in lines] == [
        ("scores 0", ["worst"]),
        ("scores 1", ["worst"]),
        ("scores 4", ["best"]),
        ("scores 3", ["best"]),
    ]


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_random_choice_depends_on_seed_and_step_alone(seed: int) -> None:
    groups = [group(0, *(answer(float(score)) for score in range(50)))]

    def choices(seed: int, *steps: int) -> list[str]:
        run = Run(seed, rules=["random"])
        return [line["answer"] for step in steps for line in run.step(step, groups)]

    whole = choices(seed, 1, 2, 3, 4)
    assert choices(seed, 3, 4) == whole[2:]
    assert len(set(whole)) > 1
    assert choices(seed - 1 if seed else 1, 1, 2, 3, 4) != whole


def test_a_score_that_is_no_number_is_worst_and_null() -> None:
    lines = Run(rules=["best", "worst"]).step(1, [group(0, answer(0.0), answer(float("nan")))])

    assert [(line["score"], line["chosen"]) for line in lines] == [(0.0, ["best"]), (None, ["worst"])]


def test_a_line_describes_the_answer() -> None:
    special = answer(
        0.5,
        versions=np.array([2, 2, 3]),
        metrics={"format": 1, "style": 0.25},
        truncated=True,
    )
    (line,) = Run(rules=["best"], tokens=True).step(3, [group(7, special)])

    assert line == {
        "step": 3,
        "kind": "trained",
        "chosen": ["best"],
        "score": 0.5,
        "exact": False,
        "metrics": {"format": 1.0, "style": 0.25},
        "length": 3,
        "truncated": True,
        "versions": [2, 3],
        "staleness": 3,
        "group": 7,
        "source": "",
        "example": 7,
        "prompt": "prompt 7",
        "answer": "scores 0.5",
        "tokens": [0, 1, 2],
    }


def test_turns_of_an_answer_name_who_wrote_them_and_only_sampled_tokens_count() -> None:
    call = answer(
        1.0,
        length=5,
        text="c2*3\n6\n6",
        turns=("c2*3", "6", "6"),
        versions=np.array([1, 1, 1, 2, 2]),
        loss_mask=[1, 1, 0, 0, 1],
    )
    (line,) = Run(tokens=True).step(1, [group(0, call)])

    assert line["turns"] == [
        {"from": "policy", "text": "c2*3"},
        {"from": "environment", "text": "6"},
        {"from": "policy", "text": "6"},
    ]
    assert (line["length"], line["versions"], line["loss_mask"]) == (3, [1, 2], [1, 1, 0, 0, 1])
    json.dumps(line, allow_nan=False)


def test_an_answer_without_sampled_tokens_has_no_versions() -> None:
    lines = Run().step(1, [group(0, answer(0.0, length=0), answer(0.0, length=2, loss_mask=[0, 0]))])

    assert {tuple(line["versions"]) for line in lines} == {()}


def test_validated_answers_are_chosen_apart_and_once() -> None:
    run = Run(rules=["best"])
    run.train(1, [group(0, answer(0.5))])
    run.samples.add_validated([group(9).prompt, group(8).prompt], [answer(0.0), answer(1.0)])
    run.bus.fire(StepEnd, step=1)
    run.step(2, [group(0, answer(0.5))])

    found = [(line["step"], line["kind"], line["score"], line["group"]) for line in run.log.lines]
    assert found == [(1, "trained", 0.5, 0), (1, "validated", 1.0, None), (2, "trained", 0.5, 0)]


def test_long_texts_are_cut_in_the_middle() -> None:
    (line,) = Run(max_characters=100).step(1, [group(0, answer(1.0, text="a" * 1000 + "b" * 1000))])

    assert line["answer"] == f"{'a' * 50} ... 1900 characters ... {'b' * 50}"


def test_samples_are_written_every_few_steps_and_at_the_last_one() -> None:
    run = Run(every=3, rules=["best"])
    for step in range(1, 6):
        run.step(step, [group(step, answer(1.0))], last=step == 5)

    assert [(line["step"], line["group"]) for line in run.log.lines] == [(3, 3), (5, 5)]


def test_the_console_is_an_option() -> None:
    with_console, without = Run(console=True), Run()
    for run in (with_console, without):
        run.step(1, [group(0, answer(1.0))])

    assert (with_console.log.shown, without.log.shown) == ([1], [])


def test_samples_of_a_step_that_was_not_reported_are_written_at_the_end_once() -> None:
    run = Run(rules=["best"])
    run.train(1, [group(0, answer(1.0))])
    for _ in range(2):
        run.bus.fire(FitEnd, step=1, row={"x": 1.0}, status="failed")

    assert [line["step"] for line in run.log.lines] == [1]


@pytest.mark.parametrize("complete", [0, 1])
def test_samples_of_a_step_that_was_not_completed_are_not_written(complete: int) -> None:
    run = Run(rules=["best"])
    run.train(2, [group(0, answer(1.0))])
    run.bus.fire(FitEnd, step=complete, status="failed")

    assert run.log.lines == []


@pytest.mark.parametrize(
    ("resume", "total", "left"), [("auto", 9, [1, 2]), ("off", 9, [1, 2, 3, 4]), ("auto", 2, [1, 2, 3, 4])]
)
def test_a_resumed_run_with_steps_left_removes_the_lines_after_its_checkpoint(
    resume: Any, total: int, left: list[int]
) -> None:
    run = Run()
    run.log.lines = [{"step": step} for step in (1, 2, 3, 4)]
    run.state.resume, run.state.step, run.state.total_steps = resume, 2, total
    run.bus.fire(FitStart)

    assert [line["step"] for line in run.log.lines] == left


def test_a_log_that_cannot_be_written_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(console=True)
    run.log.error = RecordError("samples cannot be written to samples.jsonl: no space left")
    for step in (1, 2):
        run.step(step, [group(0, answer(1.0))])

    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "step 1: samples cannot be written to samples.jsonl: no space left. The run continues without samples"
    )
    assert run.log.shown == [1, 2]


def test_nothing_is_kept_unless_a_plugin_asks_and_then_one_update_and_one_validation() -> None:
    kept = KeptSamples()
    kept.add_trained([group(0)])
    kept.add_validated([group(0).prompt], [answer(1.0)])
    assert (kept.trained, kept.validated) == ((), ())

    kept.keep()
    for number in (1, 2):
        kept.add_trained([group(number)])
        kept.add_validated([group(number).prompt], [answer(1.0)])
    assert [each.number for each in kept.trained] == [2]
    assert [prompt.text for prompt, _ in kept.validated] == ["prompt 2"]


def test_the_plugin_keeps_no_more_than_the_answers_that_it_chose() -> None:
    run = Run(count=1)
    run.train(1, *([group(number, *(answer(float(score)) for score in range(20)))] for number in range(10)))

    assert sum(len(candidates) for candidates in run.plugin._trained.values()) == len(RULES)


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"count": 0}, {"rules": []}, {"rules": ["shortest"]}, {"max_characters": 10}]
)
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        Samples(**options)
