"""The task of a data file: columns, order, held-out rows, resuming, and refusals before the run."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hooktrainer.errors import CheckpointError, ConfigError
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.ports import Answer, CharacterTask, Score, Task
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.tasks.dataset import Dataset
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.rewards import RewardOptions

REWARDS = """
def exact(answer, truth):
    return float(answer == truth)

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(data_source == "digits" and solution_str == ground_truth and extra_info["index"] >= 0)
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{number}>", "truth": str(number)} for number in range(count)]


def task_of(path: Path, rewards: Path, function: str = "exact", **options: Any) -> Dataset:
    return Dataset(path=path, rewards=(RewardOptions(use=f"{rewards}:{function}"),), **options)


def texts(task: Task, seed: int) -> list[str]:
    return [example.text for example in task.train(seed)]


def answer(text: str) -> Answer:
    return Answer(text, np.zeros(1, np.int64))


def composed(task: dict[str, Any], base: Path) -> Any:
    data = {
        "task": {"use": "dataset", **task},
        "model": {"use": "decoder"},
        "rollout": {"use": "inline", "n": 2},
        "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
        "plugins": ["weight_sync"],
    }
    return composition_of(config_from_mapping(data, base=base)).task


def test_every_epoch_has_all_rows_in_an_order_of_its_seed(tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(50)), rewards)

    assert isinstance(task, Task)
    assert task.size == 50
    assert texts(task, 1) == texts(task, 1) != texts(task, 2)
    assert sorted(texts(task, 1)) == sorted(texts(task, 2)) == sorted(row["prompt"] for row in numbered(50))
    assert texts(task_of(tmp_path / "a.jsonl", rewards, shuffle=False), 1) == [row["prompt"] for row in numbered(50)]


def test_examples_have_the_row_and_its_number(tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(5)), rewards)

    for example in task.train(0):
        assert example.row == numbered(5)[example.number]


@pytest.mark.parametrize(("heldout", "count"), [(7, 7), (0.2, 10), (0.001, 1), (0, 0)])
def test_held_out_rows_are_fixed_by_the_file_and_never_trained_on(
    heldout: float, count: int, tmp_path: Path, rewards: Path
) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(50)), rewards, heldout=heldout)
    held = [example.text for example in task.heldout(1000)]

    assert len(held) == count
    assert [example.text for example in task.heldout(3)] == held[:3]
    assert not set(held) & {text for seed in range(3) for text in texts(task, seed)}
    assert len(held) + len(texts(task, 0)) == 50


def test_a_prompt_that_occurs_twice_is_in_one_set_only(tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(10) * 3), rewards, heldout=4)
    held = [example.text for example in task.heldout(100)]

    assert len(held) == len(set(held)) == 4
    left = [row["prompt"] for row in numbered(10) * 3 if row["prompt"] not in held]
    assert sorted(texts(task, 0)) == sorted(left)


def test_held_out_rows_can_have_a_file_of_their_own(tmp_path: Path, rewards: Path) -> None:
    train = jsonl(tmp_path / "a.jsonl", numbered(10))
    test = jsonl(tmp_path / "b.jsonl", [{"prompt": f"t{n}", "truth": "x"} for n in range(6)])
    task = task_of(train, rewards, heldout_path=test)

    assert len(texts(task, 0)) == 10
    assert sorted(example.text for example in task.heldout(100)) == [f"t{n}" for n in range(6)]
    assert task.heldout(2) == task.heldout(6)[:2]


@pytest.mark.parametrize("heldout", [10, 11, 0.999])
def test_a_split_that_leaves_nothing_to_train_on_is_refused(heldout: float, tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(10)), rewards, heldout=heldout)

    with pytest.raises(ConfigError, match=r"has 10 different prompts, and heldout takes 1. of them"):
        task.train(0)


def test_the_layout_of_verl_needs_no_options_for_columns(tmp_path: Path, rewards: Path) -> None:
    rows = [
        {
            "data_source": "digits",
            "prompt": [{"role": "system", "content": "Be brief.", "name": None}, {"role": "user", "content": f"{n}?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n)},
            "extra_info": {"index": n, "split": "train"},
        }
        for n in range(8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    task = task_of(tmp_path / "train.parquet", rewards, "compute_score")
    example = task.train(0)[0]

    system = {"role": "system", "content": "Be brief."}
    assert example.prompt == [system, {"role": "user", "content": f"{example.number}?"}]
    assert [score.value for score in task.score(example, [answer(str(example.number)), answer("x")])] == [1.0, 0.0]
    json.dumps(example.row)


@pytest.mark.parametrize(
    ("row", "truth"),
    [
        ({"reward_model": {"ground_truth": "a"}, "truth": "b"}, "a"),
        ({"ground_truth": "a", "answer": "b"}, "a"),
        ({"answer": "a", "solution": "b"}, "a"),
        ({"solution": "a"}, "a"),
    ],
)
def test_the_column_of_the_truth_is_found(row: dict[str, Any], truth: str, tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", [{"prompt": "x", **row}]), rewards)
    (score,) = task.score(task.train(0)[0], [answer(truth)])

    assert isinstance(score, Score)
    assert score.value == 1.0


def test_columns_can_be_nested_and_lists(tmp_path: Path, rewards: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"q": {"text": "one?"}, "answers": ["1", "uno"]}])
    task = task_of(path, rewards, prompt="q.text", truth="answers.1")
    example = task.train(0)[0]

    assert example.prompt == "one?"
    assert task.score(example, [answer("uno")])[0].value == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"truth": "1"}, r"a.jsonl, line 3, column 'prompt': there is no column 'prompt'; there are truth"),
        ({"prompt": None, "truth": "1"}, r"line 3, column 'prompt': expected a text, or a list of .* found None"),
        ({"prompt": "", "truth": "1"}, r"line 3, column 'prompt': expected a text"),
        ({"prompt": [], "truth": "1"}, r"line 3, column 'prompt'"),
        ({"prompt": 7, "truth": "1"}, r"line 3, column 'prompt': .* found 7 \(int\)"),
        ({"prompt": ["a"], "truth": "1"}, r"line 3, column 'prompt'"),
        ({"prompt": [{"role": "user"}], "truth": "1"}, r"line 3, column 'prompt'"),
        ({"prompt": "a", "thruth": "1"}, r"column 'truth': there is no column 'truth'; .*Did you mean 'thruth'\?"),
        ({"prompt": "a", "truth": None}, r"line 3, column 'truth': the truth is empty. Set `truth: null`"),
        ({"prompt": "a", "truth": math.nan}, r"line 3, column 'truth': the truth is NaN, which equals no answer"),
        ({"prompt": "a", "truth": [1.0, {"x": math.nan}]}, r"line 3, column 'truth': the truth contains NaN, which"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_named_before_the_run(
    row: dict[str, Any], message: str, tmp_path: Path, rewards: Path
) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", [*numbered(2), row]), rewards)

    with pytest.raises(ConfigError, match=message):
        task.train(0)


def test_a_truth_of_parquet_that_is_nan_is_named(tmp_path: Path, rewards: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "truth": [1.0, math.nan], "level": [math.nan, 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(ConfigError, match=r"a.parquet, row 2, column 'truth': the truth is NaN"):
        task_of(tmp_path / "a.parquet", rewards).train(0)
    assert len(task_of(tmp_path / "a.parquet", rewards, truth=None).train(0)) == 2


@pytest.mark.usefixtures("rewards")
def test_faults_of_options_are_found_when_the_run_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "a.jsonl", numbered(3))
    jsonl(tmp_path / "labels.jsonl", [{"prompt": "a", "label": "b"}])
    use = [{"use": "my_rewards.py:exact"}]
    for options, message in [
        ({"path": "b.jsonl", "rewards": use}, r"task.path: there is no file .*b.jsonl; .* Did you mean 'a.jsonl'\?"),
        ({"path": "a.jsonl", "rewards": []}, r"task.rewards"),
        ({"path": "a.jsonl", "rewards": use, "prompt": "promt"}, r"task.prompt: .*Did you mean 'prompt'\?"),
        ({"path": "a.jsonl", "rewards": use, "truth": "answer"}, r"task.truth: .*no column 'answer'"),
        ({"path": "a.jsonl", "rewards": use, "heldout": 1.0}, r"task.heldout: .*share of at least 0 and below 1"),
        ({"path": "a.jsonl", "rewards": use, "heldout": -1}, r"task.heldout: expected a value >= 0"),
        ({"path": "a.jsonl", "rewards": use, "heldout_path": "c.jsonl"}, r"task.heldout_path: there is no file"),
        ({"path": "labels.jsonl", "rewards": use}, r"rewards\[0\].use: exact.* takes 'truth'.*Set task.truth"),
        ({"path": "a.jsonl", "rewards": [{"use": "my_rewards.py:exakt"}]}, r"rewards\[0\].*Did you mean 'exact'\?"),
        ({"path": "a.jsonl", "rewards": [{"use": "none.py:exact"}]}, r"task.rewards\[0\].use: there is no file"),
        ({"path": "a.jsonl", "rewards": [*use, *use]}, r"task.rewards\[1\].name: two rewards have the name 'exact'"),
        ({"path": "a.jsonl", "rewards": [{**use[0], "wieght": 2}]}, r"rewards\[0\].wieght: .*Did you mean 'weight'\?"),
        ({"path": "a.jsonl", "rewards": use[0]}, r"task.rewards: expected a list"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            composed(options, tmp_path)


@pytest.mark.usefixtures("rewards")
def test_files_are_relative_to_the_yaml_or_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    jsonl(tmp_path / "a.jsonl", numbered(3))
    jsonl(tmp_path / "here" / "b.jsonl", numbered(4))
    monkeypatch.chdir(tmp_path / "here")
    use = [{"use": "my_rewards.py:exact"}]

    assert composed({"path": "a.jsonl", "rewards": use}, tmp_path).size == 3
    assert composed({"path": "b.jsonl", "rewards": use}, tmp_path).size == 4
    assert composed({"path": "b.jsonl", "heldout_path": "a.jsonl", "rewards": use}, tmp_path).heldout(9)


@pytest.mark.usefixtures("rewards")
def test_a_reward_that_is_only_a_name_has_the_default_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)  # so that the file is relative to the YAML file
    jsonl(tmp_path / "a.jsonl", numbered(3))
    name, full = "my_rewards.py:exact", {"use": "my_rewards.py:exact", "name": "again", "weight": 2}
    task = composed({"path": "a.jsonl", "rewards": [name, full]}, tmp_path)
    assert task.rewards[0] == RewardOptions(use=f"{tmp_path}/my_rewards.py:exact")
    assert task.rewards[1] == RewardOptions(use=f"{tmp_path}/my_rewards.py:exact", name="again", weight=2.0)
    assert composed({"use": "mixture", "tasks": [{"use": "dataset", "path": "a.jsonl", "rewards": [name]}]}, tmp_path)
    for wrong, message in [
        ("my_rewards.py:exakt", r"rewards\[0\].use: .*Did you mean 'exact'\?"),
        ("none.py:exact", r"rewards\[0\].use: there is no file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            composed({"path": "a.jsonl", "rewards": [wrong]}, tmp_path)


def test_the_file_is_not_sent_to_worker_processes(tmp_path: Path, rewards: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", numbered(5000))
    task = task_of(path, rewards)
    example = task.train(0)[0]

    packed = pickle.dumps(task)
    path.unlink()

    assert len(packed) < 2000
    assert pickle.loads(packed).score(example, [answer(str(example.number))])[0].value == 1.0


def test_text_prompts_suit_the_model_that_reads_characters(tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(12)), rewards)
    assert isinstance(task, CharacterTask)
    assert (task.alphabet, task.longest_prompt) == ("0123456789>", 3)

    chat = task_of(jsonl(tmp_path / "b.jsonl", [{"prompt": [{"role": "user", "content": "a"}], "truth": "b"}]), rewards)
    with pytest.raises(ConfigError, match="its prompts are messages"):
        _ = chat.alphabet


def prompts_of(task: Task, seed: int = 3, epochs: int = 2) -> TaskPrompts:
    return TaskPrompts(task, CharTokenizer("0123456789>t"), seed=seed, total_epochs=epochs)


@pytest.mark.parametrize("taken", [0, 1, 13, 20, 21, 39])
def test_a_resumed_run_takes_each_prompt_once(taken: int, tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(20)), rewards)
    whole = [prompt.text for prompt in prompts_of(task).take(100)]
    first = prompts_of(task)
    before = [prompt.text for prompt in first.take(taken)]
    resumed = prompts_of(task_of(tmp_path / "a.jsonl", rewards))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert before + [prompt.text for prompt in resumed.take(100)] == whole
    assert len(whole) == 40


def test_a_resumed_run_does_not_read_the_rows_that_it_skips(tmp_path: Path, rewards: Path) -> None:
    task = task_of(jsonl(tmp_path / "a.jsonl", numbered(500)), rewards)
    first = prompts_of(task)
    first.take(400)
    state = first.state_dict()
    other = task_of(tmp_path / "a.jsonl", rewards)
    rows, read = other._split.rows, []
    plain = type(rows).__getitem__

    class Counting(type(rows)):
        def __getitem__(self, number: int) -> dict[str, Any]:
            read.append(number)
            return plain(self, number)

    rows.__class__ = Counting
    prompts = prompts_of(other)
    prompts.load_state_dict(state)

    assert len(read) < 5


@pytest.mark.parametrize("option", ["path", "heldout_path"])
def test_a_file_that_changed_is_refused_on_resume(option: str, tmp_path: Path, rewards: Path) -> None:
    files = {"path": tmp_path / "a.jsonl", "heldout_path": tmp_path / "b.jsonl"}
    for path in files.values():
        jsonl(path, numbered(20))
    options = {"heldout_path": files["heldout_path"]}
    first = prompts_of(task_of(files["path"], rewards, **options))
    first.take(5)
    jsonl(files[option], [*numbered(19), {"prompt": "19>", "truth": "20"}])

    resumed = prompts_of(task_of(files["path"], rewards, **options))
    with pytest.raises(CheckpointError, match=rf"data of the task changed .*: {option} = ..jsonl. Resume"):
        resumed.load_state_dict(first.state_dict())


def test_too_long_prompts_do_not_move_the_position(tmp_path: Path, rewards: Path) -> None:
    from hooktrainer.tasks.prompts import PromptLimit

    rows = [{"prompt": "1" * (9 if n % 3 else 2), "truth": str(n)} for n in range(30)]
    task = task_of(jsonl(tmp_path / "a.jsonl", rows), rewards)

    def prompts() -> TaskPrompts:
        return TaskPrompts(task, CharTokenizer("1"), seed=0, limit=PromptLimit(5))

    first = prompts()
    before = [prompt.example.number for prompt in first.take(4)]
    resumed = prompts()
    resumed.load_state_dict(first.state_dict())

    assert sorted(before + [prompt.example.number for prompt in resumed.take(100)]) == list(range(0, 30, 3))


def test_rows_of_all_formats_train_in_the_same_order(tmp_path: Path, rewards: Path) -> None:
    jsonl(tmp_path / "a.jsonl", numbered(20))
    pq.write_table(pa.Table.from_pylist(numbered(20)), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("prompt,truth\n" + "".join(f"{n}>,{n}\n" for n in range(20)))
    orders = [texts(task_of(tmp_path / f"a.{form}", rewards, heldout=5), 1) for form in ("jsonl", "parquet", "csv")]

    assert all(order == orders[0] for order in itertools.chain(orders))
