"""Reward functions run unchanged, as written for verl and TRL, and every bad return is a clear error."""

from __future__ import annotations

import asyncio
import decimal
import fractions
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hooktrainer.errors import ConfigError, RolloutError
from hooktrainer.ports import Answer, Example, Score
from hooktrainer.rollout.scoring import score_answers
from hooktrainer.tasks.rewards import Names, RewardOptions, Rewards

MESSAGES = [{"role": "user", "content": "40 + 2?"}]
ROW = {
    "data_source": "openai/gsm8k",
    "prompt": MESSAGES,
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 3},
    "difficulty": 2,
}
EXAMPLE = Example(MESSAGES, ROW)
TEXT = Example("40 + 2?", {**ROW, "prompt": "40 + 2?"})

VERL = """
import re

def extract_solution(solution_str, method="strict"):
    solutions = re.findall("#### (\\\\-?[0-9\\\\.\\\\,]+)", solution_str)
    return solutions[-1].replace(",", "") if solutions else None

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k" and extra_info["index"] == 3
    return 1.0 if extract_solution(solution_str) == ground_truth else 0.0

def gsm8k(solution_str, ground_truth, method="strict", format_score=0.1, score=1.0):
    answer = extract_solution(solution_str, method)
    return 0 if answer is None else score if answer == ground_truth else format_score

def math_dapo(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert not kwargs
    correct = ground_truth in solution_str
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": solution_str, "length": len(solution_str)}
"""
TRL = """
import re

def format_reward(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think>", content) else 0.0 for content in contents]

def columns(prompts, completions, completion_ids, difficulty, ground_truth, **kwargs):
    assert prompts == [[{"role": "user", "content": "40 + 2?"}]] * len(completions)
    assert completion_ids == [[1, 2, 3]] * len(completions)
    assert sorted(kwargs) == ["data_source", "extra_info", "log_extra", "log_metric", "reward_model", "trainer_state"]
    return [float(truth in c[0]["content"]) * d for c, d, truth in zip(completions, difficulty, ground_truth)]

def lengths(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]

async def remote(prompts, completions, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("found", 0.5)
    log_extra("first", [c[0]["content"][:1] for c in completions])
    log_extra("size", [len(c[0]["content"]) for c in completions])
    return [float(trainer_state.global_step)] * len(completions)

def only_math(completions, data_source, **kwargs):
    return [None if "gsm8k" in source else 1.0 for source in data_source]

def anything(**kwargs):
    return [float(len(c)) for c in kwargs["completions"]]
"""
OWN = """
def own(answer, truth):
    return answer.endswith(truth)

def with_prompt(prompt, answer, truth, /, difficulty, *, bonus=0.0):
    assert prompt == [{"role": "user", "content": "40 + 2?"}]
    return float(answer.endswith(truth)) * difficulty + bonus
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(VERL + TRL + OWN)
    return path


def answers(*texts: str) -> list[Answer]:
    return [Answer(text, np.array([1, 2, 3]), version=7) for text in texts]


class Task:
    """A task of these rewards."""

    def __init__(self, *options: RewardOptions, row: dict[str, Any] | None = None, truth: Any = "42") -> None:
        self.truth = truth
        names = Names(list(row or ROW), has_truth=truth is not None)
        self.rewards = Rewards(options, names)

    def score(self, example: Example, given: Sequence[Answer]) -> Any:
        return self.rewards.score(example, self.truth, given)


def scored(
    *options: RewardOptions, example: Example = EXAMPLE, texts: Sequence[str] = ("#### 42", "no")
) -> list[Score]:
    return score_answers(Task(*options), example, answers(*texts))  # type: ignore[arg-type]


def values(scores: Sequence[Score]) -> list[float]:
    return [score.value for score in scores]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("compute_score", [1.0, 0.0]),
        ("gsm8k", [1.0, 0.0]),
        ("math_dapo", [1.0, -1.0]),
        ("format_reward", [0.0, 0.0]),
        ("columns", [2.0, 0.0]),
        ("lengths", [3.0, 3.0]),
        ("remote", [7.0, 7.0]),
        ("anything", [1.0, 1.0]),
        ("own", [1.0, 0.0]),
        ("with_prompt", [2.0, 0.0]),
    ],
)
def test_functions_for_verl_and_trl_run_unchanged(name: str, expected: list[float], module: Path) -> None:
    found = scored(RewardOptions(use=f"{module}:{name}"))

    assert values(found) == expected
    assert [score.metrics[name] for score in found] == expected


def test_a_text_prompt_gives_completions_as_texts(module: Path) -> None:
    found = scored(RewardOptions(use=f"{module}:anything"), example=TEXT)

    assert values(found) == [float(len("#### 42")), float(len("no"))]


def test_further_numbers_of_a_dictionary_become_metrics(module: Path) -> None:
    first, second = scored(RewardOptions(use=f"{module}:math_dapo", name="dapo"))

    assert first.metrics == {"dapo": 1.0, "dapo/acc": 1.0, "dapo/length": 7.0}
    assert second.metrics == {"dapo": -1.0, "dapo/acc": 0.0, "dapo/length": 2.0}


def test_logged_numbers_become_metrics_of_the_reward(module: Path) -> None:
    first, second = scored(RewardOptions(use=f"{module}:remote"))

    assert first.metrics == {"remote": 7.0, "remote/found": 0.5, "remote/size": 7.0}
    assert second.metrics["remote/size"] == 2.0


def test_values_are_added_with_weights_and_none_is_left_out(module: Path) -> None:
    options = [
        RewardOptions(use=f"{module}:compute_score", weight=2.0),
        RewardOptions(use=f"{module}:lengths", weight=-0.5),
        RewardOptions(use=f"{module}:only_math", weight=9.0),
        RewardOptions(use=f"{module}:own", weight=0.0),
    ]
    first, second = scored(*options)

    assert values([first, second]) == [2.0 - 1.5, -1.5]
    assert "only_math" not in first.metrics
    assert first.metrics["own"] == 1.0


@pytest.mark.parametrize(
    ("numbers", "weights", "exact"),
    [
        ([1.0], [1.0], True),
        ([sum([0.1] * 10)], [1.0], True),
        ([sum([0.05] * 20)], [3.0], True),
        ([0.99], [1.0], False),
        ([2.0], [1.0], False),
        ([1.0, 1.0], [0.9, 0.1], True),
        ([1.0, 0.5], [0.9, 0.1], False),
        ([1.0, -0.3], [1.0, 0.0], True),
        ([1.0, 0.7], [1.0, -1.0], True),
        ([1.0], [0.0], False),
        ([1.0, None], [1.0, 1.0], True),
    ],
)
def test_full_marks_are_1_from_every_reward_with_a_positive_weight(
    numbers: list[float | None], weights: list[float], exact: bool, tmp_path: Path
) -> None:
    body = "\n".join(f"def r{i}(completions): return [{number}]" for i, number in enumerate(numbers))
    (tmp_path / "r.py").write_text(body)
    options = [RewardOptions(use=f"{tmp_path}/r.py:r{i}", weight=weight) for i, weight in enumerate(weights)]

    assert scored(*options, texts=["x"])[0].exact is exact


def test_arguments_are_passed_by_name(module: Path) -> None:
    option = RewardOptions(use=f"{module}:with_prompt", args={"bonus": 0.25, "difficulty": 4})
    assert values(scored(option)) == [4.25, 0.25]

    option = RewardOptions(use=f"{module}:gsm8k", args={"score": 5.0})
    assert values(scored(option)) == [5.0, 0.0]


def one(function: Callable[..., Any], *texts: str, monkeypatch: pytest.MonkeyPatch) -> list[Score]:
    """Score with a function that is defined in a test."""
    monkeypatch.setattr("helpers.tokens.the_reward", function, raising=False)
    return scored(RewardOptions(use="helpers.tokens:the_reward"), texts=texts or ("aa", "b"))


@pytest.mark.parametrize(
    "value",
    [1, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), np.array([1.0]), torch.tensor(1.0),
     torch.tensor([[1]]), decimal.Decimal(1), fractions.Fraction(1)],
    ids=repr,
)  # fmt: skip
def test_numbers_of_every_library_are_accepted(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(one(lambda answer: value, monkeypatch=monkeypatch)) == [1.0, 1.0]
    assert values(one(lambda completions: [value, value], monkeypatch=monkeypatch)) == [1.0, 1.0]


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_values_of_a_group_can_be_a_list_or_a_tensor(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(one(lambda completions: make([0.25, 0.5]), monkeypatch=monkeypatch)) == [0.25, 0.5]


def raises(answer: str) -> float:
    raise ValueError("no such key")


async def raises_later(answer: str) -> float:
    await asyncio.sleep(0)
    raise ValueError("no such key")


def yields(completions: list[str]) -> Any:
    yield 1.0


async def yields_later(completions: list[str]) -> Any:
    yield 1.0


async def number() -> float:
    return 1.0


GROUP = "expected a list of 2 numbers, one for each answer"
NUMBER = "expected a number, or a dictionary with 'score'"
BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises, "raised ValueError: no such key"),
    "raises later": (raises_later, "raised ValueError: no such key"),
    "nan": (lambda answer: float("nan"), "returned nan; expected a finite number"),
    "inf": (lambda answer: float("-inf"), "returned -inf; expected a finite number"),
    "nan in score": (lambda answer: {"score": float("nan")}, "returned nan; expected a finite number"),
    "nan in a list": (lambda completions: [1.0, float("nan")], "returned nan; expected a finite number"),
    "huge integer": (lambda answer: 10**400, "returned a value of type int that is no float: int too large"),
    "longer integer": (lambda answer: 10**5000, "returned a value of type int that is no float: int too large"),
    "huge fraction": (lambda answer: fractions.Fraction(10**400), "a value of type Fraction that is no float"),
    "signalling nan": (lambda answer: decimal.Decimal("sNaN"), "a value of type Decimal that is no float"),
    "huge integers": (lambda completions: [10**400] * 2, "a value of type int that is no float"),
    "huge metric": (lambda answer: {"score": 1, "m": 10**400}, "a value of type int that is no float"),
    "tensor": (lambda answer: torch.zeros(3), rf"returned a Tensor of shape \(3,\); {NUMBER}"),
    "array": (lambda answer: np.zeros((2, 2)), rf"returned a ndarray of shape \(2, 2\); {NUMBER}"),
    "text": (lambda answer: "1.0", rf"returned '1.0' \(str\); {NUMBER}"),
    "list": (lambda answer: [1.0], rf"returned \[1.0\] \(list\); {NUMBER}"),
    "no score": (lambda answer: {"scores": 1.0}, r"a dictionary without 'score'; it has scores. Did"),
    "text in score": (lambda answer: {"score": "1"}, r"returned '1' \(str\); expected a number in 'score'"),
    "generator": (lambda answer: (x for x in [1]), "returned a generator"),
    "function": (lambda answer: number, "returned <function number"),
    "none alone": (lambda completions: None, f"returned None; {GROUP}"),
    "bool alone": (lambda completions: True, rf"returned True \(bool\); {GROUP}"),
    "number alone": (lambda completions: 0.5, rf"returned 0.5 \(float\); {GROUP}"),
    "text alone": (lambda completions: "ab", rf"returned 'ab' \(str\); {GROUP}"),
    "dictionary alone": (lambda completions: {"score": 1.0}, rf"returned .* \(dict\); {GROUP}"),
    "too few": (lambda completions: [1.0], f"returned 1 values for 2 answers; {GROUP}"),
    "too many": (lambda completions: [1.0] * 3, f"returned 3 values for 2 answers; {GROUP}"),
    "text in a list": (lambda completions: ["1", "2"], r"returned '1' \(str\); expected a number or None"),
    "matrix": (lambda completions: torch.zeros(2, 1), r"returned a Tensor of shape \(2, 1\); .* of shape \(2,\)"),
    "yields": (yields, r"returned a generator \(the function has a yield\)"),
    "yields later": (yields_later, r"returned a generator \(the function has a yield\)"),
    "never awaited": (lambda completions: [number() for _ in completions], "coroutine objects that were not awaited"),
    "mixed log": (lambda completions, log_metric: log_metric("x", "y"), "logged 'y' .* as the metric 'x'"),
    "short log": (lambda completions, log_extra: log_extra("x", [1]), "logged 1 values of 'x' for 2 answers"),
    "all none": (lambda completions: [0.5, None], "None for .*, so that it has no score. Is a `return`"),
    "no return": (lambda answer: None, "None for .*, so that it has no score. Is a `return`"),
    "unknown state": (lambda completions, trainer_state: trainer_state.epoch, "has only `global_step`, not 'epoch'"),
}  # fmt: skip


@pytest.mark.parametrize(("numbers", "weights"), [([1e308], [10.0]), ([1e308, 1e308], [1.0, 1.0])])
def test_a_sum_of_rewards_that_is_not_finite_names_them(
    numbers: list[float], weights: list[float], tmp_path: Path
) -> None:
    (tmp_path / "r.py").write_text("\n".join(f"def r{i}(answer): return {value}" for i, value in enumerate(numbers)))
    options = [RewardOptions(use=f"{tmp_path}/r.py:r{i}", weight=weight) for i, weight in enumerate(weights)]
    with pytest.raises(RolloutError, match=r"the sum of .* x 'r0'.* is inf for .*; expected a finite number"):
        scored(*options)


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_value_names_the_reward_the_prompt_and_the_answer(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, message = BAD[case]
    with pytest.raises(RolloutError, match=message) as caught:
        one(function, monkeypatch=monkeypatch)
    text = str(caught.value)
    assert "the reward 'the_reward'" in text
    assert "'user: 40 + 2?'" in text
    assert "'aa'" in text or "'b'" in text


def test_long_prompts_and_answers_are_shortened_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RolloutError) as caught:
        one(raises, "x" * 5000, monkeypatch=monkeypatch)
    assert len(str(caught.value)) < 600


def test_functools_partial_and_objects_can_be_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    def base(answer: str, target: str) -> float:
        return float(answer == target)

    class Judge:
        def __call__(self, completions: list[Any], **kwargs: Any) -> list[float]:
            return [0.5] * len(completions)

    assert values(one(functools.partial(base, target="b"), monkeypatch=monkeypatch)) == [0.0, 1.0]
    assert values(one(Judge(), monkeypatch=monkeypatch)) == [0.5, 0.5]


def test_a_function_that_returns_a_coroutine_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(one(lambda answer: number(), monkeypatch=monkeypatch)) == [1.0, 1.0]


def test_asynchronous_calls_of_a_group_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[str] = []
    everybody = asyncio.Event()

    async def waits(answer: str) -> float:
        arrived.append(answer)
        if len(arrived) == 4:
            everybody.set()
        await everybody.wait()
        return 1.0

    assert values(one(waits, "a", "b", "c", "d", monkeypatch=monkeypatch)) == [1.0] * 4


def test_a_row_is_not_changed_by_a_function_that_changes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def pops(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        return float(extra_info.pop("index"))

    assert values(one(pops, monkeypatch=monkeypatch)) == [3.0, 3.0]
    assert ROW["extra_info"] == {"index": 3}


def bound(
    function: Callable[..., Any], args: dict[str, Any], monkeypatch: pytest.MonkeyPatch, truth: object = 1
) -> None:
    monkeypatch.setattr("helpers.tokens.the_reward", function, raising=False)
    names = Names(["prompt", "difficulty", "label"], has_truth=truth is not None)
    Rewards([RewardOptions(use="helpers.tokens:the_reward", args=args)], names)


@pytest.mark.parametrize(
    ("function", "args", "truth", "message"),
    [
        (lambda answer, goal: 0, {}, 1, r"the_reward\(answer, goal\) takes 'goal', .* answer, .*, label. Rename"),
        (lambda solution_str, ground_thruth: 0, {}, 1, r"takes 'ground_thruth'.*Did you mean 'ground_truth'\?"),
        (lambda solution_str, difficulty: 0, {}, 1, r"takes 'difficulty', which is not available"),
        (lambda completions, dificulty: 0, {}, 1, r"takes 'dificulty'.*Did you mean 'difficulty'\?"),
        (lambda completions, answer: 0, {}, 1, r"takes 'answer', which is not available"),
        (lambda answer, truth: 0, {}, None, r"takes 'truth', .*Set task.truth .* one of prompt, difficulty, label"),
        (lambda text, truth: 0, {}, 1, r"the_reward\(text, truth\) takes no answers. A function for one"),
        (lambda solution_strs: 0, {}, 1, r"takes no answers.*Did you mean 'solution_str'\?"),
        (lambda: 0, {}, 1, r"the_reward\(\) takes no answers"),
        (lambda *args: 0, {}, 1, r"takes no answers"),
        (lambda answer, bonus=1: 0, {"bonos": 2}, 1, r"args has 'bonos', .* does not take. Did you mean 'bonus'\?"),
        (min, {}, 1, r"the_reward has no readable signature. Wrap it in a Python function"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_bound_is_refused_with_its_signature(
    function: Callable[..., Any], args: dict[str, Any], truth: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=message):
        bound(function, args, monkeypatch, truth)


def test_defaults_are_kept_for_parameters_that_no_column_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(answer: str, difficulty: int = 5, threshold: float = 0.5) -> float:
        return difficulty + threshold

    assert values(one(function, "a", monkeypatch=monkeypatch)) == [2.5]


def test_every_class_of_bad_return_leaves_no_coroutine_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    async def later(answer: str) -> float:
        return 1.0

    def mixed(answer: str) -> Any:
        if answer == "b":
            raise ValueError("no")
        made.append(later(answer))
        return made[-1]

    with pytest.raises(RolloutError, match="raised ValueError: no"):
        one(mixed, monkeypatch=monkeypatch)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
