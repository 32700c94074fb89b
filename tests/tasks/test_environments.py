"""Tasks with environments: the calculator, mixtures, and whole runs of answers in turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.environments import Countdown
from hooktrainer import build_trainer, load_config
from hooktrainer.ports import Answer, Environment, Example, HasEnvironment, Score, missing_methods
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.calculator import Calculator
from hooktrainer.tasks.mixture import Mixture, Part

CONFIG = Path(__file__).parents[2] / "configs" / "calculator.yaml"
SMALL = [
    "trainer.total_steps=4",
    "trainer.train_batch_size=4",
    "trainer.ppo_mini_batch_size=2",
    "trainer.parameter_sync_step=2",
    "trainer.num_warmup_batches=0",
    "plugins.validation.size=4",
    "plugins.checkpoint.every=2",
    "plugins.export.enabled=false",
]


def turn(text: str, number: int, *, last: bool = False) -> Answer:
    return Answer(text, np.zeros(0, np.int64), turn=number, last=last)


def first(task: Calculator) -> tuple[Environment, Example]:
    example = next(iter(task.train(seed=0)))
    environment = task.environment(example)
    assert environment.reset(example) == example.prompt
    return environment, example


class TestCalculator:
    def test_call_is_replied_with_the_result_and_the_answer_is_scored(self) -> None:
        environment, example = first(Calculator())
        assert environment.step(turn(f"c{example.text[:-1]}", 0)) == example.row["truth"]
        score = environment.step(turn(example.row["truth"], 1, last=True))
        assert score == Score(1.0, exact=True, metrics={"called": True, "right": 1.0})

    @pytest.mark.parametrize("call", ["c", "c47", "c47*", "c*83", "c4*7*8", "c47*83c", "c\u0661*2"])
    def test_call_that_cannot_be_read_is_replied_with_a_mark(self, call: str) -> None:
        environment, _ = first(Calculator())
        assert environment.step(turn(call, 0)) == "?"

    def test_answer_without_a_call_has_no_score(self) -> None:
        environment, example = first(Calculator())
        found = environment.step(turn(example.row["truth"], 0))
        assert isinstance(found, Score)
        assert (found.value, found.exact) == (0.0, True)

    def test_second_call_is_an_answer(self) -> None:
        environment, _ = first(Calculator())
        environment.step(turn("c1*1", 0))
        assert isinstance(environment.step(turn("c1*1", 1)), Score)

    @pytest.mark.parametrize("digits", [1, 2, 5])
    def test_prompts_calls_and_replies_use_the_alphabet(self, digits: int) -> None:
        task = Calculator(digits=digits)
        for example in task.heldout(4):
            environment = task.environment(example)
            environment.reset(example)
            reply = environment.step(turn(f"c{example.text[:-1]}", 0))
            assert isinstance(reply, str)
            assert set(example.text + reply + "c?") <= set(task.alphabet)
            assert len(example.text) <= task.longest_prompt


class WithoutScore:
    def train(self, seed: int) -> Sequence[Example]:
        return ()

    def heldout(self, size: int) -> Sequence[Example]:
        return ()

    def environment(self, example: Example) -> Environment:
        return Countdown()


class Nothing:
    def train(self, seed: int) -> Sequence[Example]:
        return ()


def test_task_with_environments_needs_no_score() -> None:
    assert missing_methods(WithoutScore) == ""
    assert missing_methods(Nothing) == "heldout, score"
    assert isinstance(WithoutScore(), HasEnvironment)
    assert not isinstance(Addition(), HasEnvironment)


def test_mixture_has_environments_for_the_examples_of_tasks_that_have_them() -> None:
    task = Mixture(tasks=(Part(use="addition", task=Addition()), Part(use="calculator", task=Calculator())))
    found = {example.source: task.environment(example) for example in task.heldout(4)}
    assert found["addition"] is None
    assert isinstance(found["calculator"], Environment)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    kept = ("critic/score/mean", "actor/pg_loss", "actor/entropy", "actor/grad_norm", "response_length/mean")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in kept} for row in rows]


@pytest.mark.slow
def test_run_with_turns_repeats_and_resumes_in_the_middle(tmp_path: Path) -> None:
    def run(name: str, *more: str) -> list[dict[str, Any]]:
        config = load_config(
            CONFIG, overrides=[*SMALL, "rollout.use=inline", f"run.dir={tmp_path}", f"run.name={name}", *more]
        )
        assert build_trainer(config).fit().step in (2, 4)
        return rows_of(tmp_path / name)

    whole = run("whole")
    assert whole == run("again")
    run("parts", "trainer.total_steps=2")
    assert run("parts", "run.resume=auto") == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [["rollout.use=process"], ["rollout.batching=group"], ["rollout.on_sync=continue"]]
)
def test_run_with_turns_completes_with_every_engine(overrides: list[str], tmp_path: Path) -> None:
    config = load_config(CONFIG, overrides=[*SMALL, f"run.dir={tmp_path}", *overrides])
    assert build_trainer(config).fit().step == 4
