"""Procedural tasks of reasoning-gym, scored by their own scorer."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

from hooktrainer.errors import ConfigError, RolloutError
from hooktrainer.ports import Answer, Task
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.reasoning_gym import ReasoningGym

SPELL = {"min_word_len": 3, "max_word_len": 6}


def answer(text: str) -> Answer:
    return Answer(text, np.zeros(1, np.int64))


def first(task: ReasoningGym, seed: int, count: int) -> list[str]:
    return [example.text for example in itertools.islice(task.train(seed), count)]


def test_the_scorer_of_the_library_gives_full_marks_to_its_own_answer() -> None:
    for name in ("spell_backward", "leg_counting", "basic_arithmetic"):
        task = ReasoningGym(name=name)
        assert isinstance(task, Task)
        for example in itertools.islice(task.train(0), 5):
            assert task.score(example, [answer(f" {example.row['truth']}\n"), answer("")]) == [1.0, 0.0]


def test_a_scorer_that_accepts_several_answers_is_used() -> None:
    task = ReasoningGym(name="countdown")
    example = next(iter(task.train(0)))
    (score, wrong) = task.score(example, [answer(example.row["truth"]), answer("1+1")])

    assert score == 1.0 > wrong


def test_an_epoch_with_a_size_has_the_same_questions_in_another_order() -> None:
    task = ReasoningGym(name="spell_backward", args=SPELL, size=40)

    assert len(task.train(1)) == 40  # type: ignore[arg-type]
    assert first(task, 1, 40) == first(task, 1, 40) != first(task, 2, 40)
    assert sorted(first(task, 1, 40)) == sorted(first(task, 2, 40))


def test_endless_questions_depend_on_the_seed() -> None:
    task = ReasoningGym(name="spell_backward", args=SPELL)

    assert first(task, 1, 1500) == first(task, 1, 1500)
    assert first(task, 1, 20) != first(task, 2, 20)


@pytest.mark.parametrize("size", [None, 500])
def test_held_out_questions_are_fixed_and_never_trained_on(size: int | None) -> None:
    task = ReasoningGym(name="spell_backward", args=SPELL, size=size)
    held = [example.text for example in task.heldout(30)]

    assert len(set(held)) == 30
    assert [example.text for example in task.heldout(5)] == held[:5]
    assert not set(held) & {text for seed in range(3) for text in first(task, seed, 500)}


def test_a_worker_process_can_score() -> None:
    task = ReasoningGym(name="spell_backward", args=SPELL, size=20)
    example = next(iter(task.train(0)))

    assert pickle.loads(pickle.dumps(task)).score(example, [answer(example.row["truth"])]) == [1.0]
    assert len(pickle.dumps(task)) < 1000


def test_an_error_of_the_scorer_names_the_question_and_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ReasoningGym(name="spell_backward")
    example = next(iter(task.train(0)))

    def fails(*_: Any) -> float:
        raise KeyError("metadata")

    monkeypatch.setattr(type(task.dataset(example.row["seed"])), "score_answer", fails)
    with pytest.raises(RolloutError, match=r"scorer of spell_backward raised KeyError.*answer 'abc' to 'Spell this"):
        task.score(example, [answer("abc")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "spell_backwards"}, r"task.name: reasoning-gym has no task .*Did you mean 'spell_backward'\?"),
        ({}, r"task.name: missing"),
        ({"name": "spell_backward", "args": {"max_len": 3}}, r"task.args: .*no option 'max_len'; it has min_word_len"),
        ({"name": "spell_backward", "args": {"seed": 3}}, r"task.args: 'seed' is set by this task itself"),
        (
            {"name": "spell_backward", "args": {"min_word_len": 9, "max_word_len": 2}},
            r"task.args: .*refuses its options",
        ),
        ({"name": "spell_backward", "size": 0}, r"task.size: expected a value >= 1"),
    ],
)
def test_faults_of_options_are_found_when_the_run_is_planned(options: dict[str, Any], message: str) -> None:
    data = {
        "task": {"use": "reasoning_gym", **options},
        "model": {"use": "huggingface", "path": "none"},
        "rollout": {"use": "inline"},
        "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
        "plugins": ["weight_sync"],
    }
    with pytest.raises(ConfigError, match=message):
        composition_of(config_from_mapping(data))
