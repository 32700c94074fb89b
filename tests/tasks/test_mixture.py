"""The task of several tasks: exact ratios, sources, disjoint held-out prompts, and resuming."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hooktrainer.errors import CheckpointError, ConfigError
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import Answer, Example, HasSources, Task
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.dataset import Dataset
from hooktrainer.tasks.mixture import Mixture, Part
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.rewards import RewardOptions
from hooktrainer.tasks.sort_digits import SortDigits


def stored(folder: Path, name: str, count: int, **options: Any) -> Dataset:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{name}{n}", "truth": str(n)}) + "\n" for n in range(count)))
    (folder / "r.py").write_text("def exact(answer, truth): return float(answer == truth)")
    return Dataset(path=path, rewards=(RewardOptions(use=f"{folder}/r.py:exact"),), **options)


def mixed(
    folder: Path, counts: tuple[int, ...] = (30, 20), ratios: tuple[int, ...] = (3, 1), **options: Any
) -> Mixture:
    named = zip("abc", counts, ratios, strict=False)
    return Mixture(
        tasks=tuple(Part(task=stored(folder, name, count, **options), ratio=r, name=name) for name, count, r in named)
    )


def sources(examples: Iterable[Example]) -> list[str]:
    return [example.source for example in examples]


@pytest.mark.parametrize(
    ("counts", "ratios", "size"), [((30, 20), (3, 1), 40), ((30, 5), (3, 1), 20), ((9, 9, 9), (1, 2, 3), 18)]
)
def test_every_round_has_the_ratios_and_an_epoch_repeats_nothing(
    counts: tuple[int, ...], ratios: tuple[int, ...], size: int, tmp_path: Path
) -> None:
    task = mixed(tmp_path, counts, ratios)
    examples = list(task.train(1))
    length = sum(ratios)

    assert isinstance(task, Task)
    assert isinstance(task, HasSources)
    assert len(examples) == task.size == size
    assert len({example.text for example in examples}) == size
    for start in range(0, size, length):
        assert Counter(sources(examples[start : start + length])) == dict(zip("abc", ratios, strict=False))


def test_the_order_is_that_of_the_seed(tmp_path: Path) -> None:
    task = mixed(tmp_path)
    orders = [[example.text for example in task.train(seed)] for seed in (1, 1, 2)]

    assert orders[0] == orders[1] != orders[2]
    assert sources(task.train(1)) != sources(task.train(2))


def test_endless_tasks_mix_with_finite_ones(tmp_path: Path) -> None:
    finite, endless = stored(tmp_path, "a", 10), SortDigits()
    task = Mixture(tasks=(Part(task=finite, ratio=2, name="a"), Part(task=endless, ratio=3, name="s")))
    found = Counter(sources(task.train(0)))

    assert task.size == 25
    assert found == {"a": 10, "s": 15}
    assert Mixture(tasks=(Part(task=endless), Part(task=Addition()))).size is None


def test_answers_are_scored_by_the_task_of_the_example(tmp_path: Path) -> None:
    task = Mixture(tasks=(Part(task=stored(tmp_path, "a", 4), name="a"), Part(task=SortDigits(digits=3), name="s")))
    zero = np.zeros(1, np.int64)

    for example in task.train(0):
        scores = task.score(example, [Answer(example.row["truth"], zero), Answer("", zero)])
        assert [getattr(score, "value", score) for score in scores] == [1.0, 0.0]  # type: ignore[arg-type]


def test_held_out_prompts_have_the_ratios_and_are_never_trained_on(tmp_path: Path) -> None:
    task = mixed(tmp_path, heldout=6)
    held = task.heldout(8)

    assert Counter(sources(held)) == {"a": 6, "b": 2}
    assert task.heldout(4) == held[:4]
    assert not {example.text for example in held} & {example.text for seed in range(3) for example in task.train(seed)}
    assert len(task.heldout(100)) < 12


def test_tasks_without_held_out_prompts_are_left_out_of_validation(tmp_path: Path) -> None:
    parts = (Part(task=stored(tmp_path, "a", 20, heldout=4), name="a"), Part(task=stored(tmp_path, "b", 20), name="b"))

    assert sources(Mixture(tasks=parts).heldout(4)) == ["a"] * 4
    assert Mixture(tasks=parts[1:]).heldout(4) == ()


def test_equal_names_are_numbered() -> None:
    task = Mixture(
        tasks=(Part(task=SortDigits(), use="sort_digits"), Part(task=SortDigits(digits=2), use="sort_digits"))
    )

    assert task.sources == ["sort_digits", "sort_digits_2"]


def prompts_of(task: Task) -> TaskPrompts:
    return TaskPrompts(task, CharTokenizer("0123456789abcs>"), seed=3, total_epochs=2)


@pytest.mark.parametrize("taken", [0, 1, 17, 40, 41, 79])
@pytest.mark.parametrize("endless", [False, True])
def test_a_resumed_run_takes_each_prompt_once(taken: int, endless: bool, tmp_path: Path) -> None:
    def task() -> Mixture:
        made = mixed(tmp_path)
        return Mixture(tasks=(*made.tasks[:1], Part(task=SortDigits(), name="s"))) if endless else made

    whole = [prompt.text for prompt in prompts_of(task()).take(1000)]
    first = prompts_of(task())
    before = [prompt.text for prompt in first.take(taken)]
    resumed = prompts_of(task())
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert before + [prompt.text for prompt in resumed.take(1000)] == whole
    assert len(whole) == 80


def test_a_changed_file_of_one_task_is_refused_on_resume(tmp_path: Path) -> None:
    first = prompts_of(mixed(tmp_path))
    state = first.state_dict()
    resumed = prompts_of(mixed(tmp_path, counts=(30, 21)))

    with pytest.raises(CheckpointError, match=r"the data of the task changed .*: b: path = b.jsonl"):
        resumed.load_state_dict(state)


def composed(tasks: list[Any], **further: Any) -> Any:
    data = {
        "task": {"use": "mixture", "tasks": tasks},
        "model": {"use": "decoder"},
        "rollout": {"use": "inline", "n": 2},
        "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
        "plugins": ["weight_sync"],
    } | further
    return composition_of(config_from_mapping(data)).task


def test_options_of_the_tasks_stand_next_to_ratio_and_name() -> None:
    task = composed([{"use": "sort_digits", "digits": 4, "ratio": 2}, "reverse", {"use": "addition", "name": "sums"}])

    assert task.sources == ["sort_digits", "reverse", "sums"]
    assert [part.ratio for part in task.tasks] == [2, 1, 1]
    assert task.tasks[0].task.digits == 4
    assert pickle.loads(pickle.dumps(task)).sources == task.sources


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], r"task.tasks: "),
        (["sort_digit"], r"task.tasks\[0\].use: no task has the name 'sort_digit'.*Did you mean 'sort_digits'\?"),
        (["reverse", {"ratio": 2}], r"task.tasks\[1\]: expected a mapping with `use`"),
        ([{"use": "sort_digits", "ratio": 0.7}], r"task.tasks\[0\].ratio: .*Ratios are whole numbers: write 7 and 3"),
        ([{"use": "sort_digits", "ratio": 0}], r"task.tasks\[0\].ratio: expected a value >= 1"),
        (
            [{"use": "sort_digits", "digit": 3}],
            r"task.tasks\[0\].digit: unknown key .*Did you mean 'digits'\?",
        ),
        ([{"use": "sort_digits", "digits": 0}], r"task.tasks\[0\].digits: expected a value >= 1"),
        ([{"use": "sort_digits", "name": "a/b"}], r"task.tasks\[0\].name: "),
        ([{"use": "dataset", "path": "none.jsonl", "rewards": []}], r"task.tasks\[0\].path: there is no file"),
    ],
)
def test_faults_in_the_tasks_have_their_address(tasks: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(tasks)


def test_files_in_a_mixture_are_relative_to_the_yaml(tmp_path: Path) -> None:
    stored(tmp_path, "a", 4)
    part = {"use": "dataset", "path": "a.jsonl", "rewards": [{"use": "r.py:exact"}]}
    data = {
        "task": {"use": "mixture", "tasks": [part]},
        "model": {"use": "decoder"},
        "rollout": {"use": "inline"},
        "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
        "plugins": ["weight_sync"],
    }

    assert composition_of(config_from_mapping(data, base=tmp_path)).task.size == 4


def test_metrics_of_the_tasks_are_known(tmp_path: Path) -> None:
    from hooktrainer.run.composition import require_runnable

    def check(metric: str) -> None:
        data = {
            "task": {"use": "mixture", "tasks": ["sort_digits", "reverse"]},
            "model": {"use": "decoder"},
            "rollout": {"use": "inline"},
            "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
            "plugins": ["metric_aggregation", "weight_sync", "validation", {"use": "checkpoint", "keep_best": metric}],
            "run": {"dir": str(tmp_path)},
        }
        require_runnable(composition_of(config_from_mapping(data)))

    check("val/score/reverse/mean")
    check("critic/score/sort_digits/mean")
    with pytest.raises(ConfigError, match=r"Did you mean 'val/score/reverse/mean'\?"):
        check("val/score/revers/mean")
