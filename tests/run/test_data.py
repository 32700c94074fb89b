"""Data that a run cannot use: none, too little, or not of the promised kind. It is refused before the first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hooktrainer.cli import main
from hooktrainer.tasks.prompts import _epoch_seed

RUN = """
task: {use: "odd.py:Odd"}
model: {use: decoder, layers: 1, width: 8, heads: 2}
rollout: {use: inline, n: 2, max_response_length: 3}
optim: {lr: 1e-3}
trainer: {total_steps: 30, train_batch_size: 8, ppo_mini_batch_size: 8}
plugins:
  [metric_aggregation, weight_sync, {use: validation, size: 4, every: 5}, {use: log_after_collect, sinks: [jsonl]}]
"""
ODD = """
import attrs
from hooktrainer.models.options import DecoderOptions
from hooktrainer.ports import Example
from hooktrainer.tasks.generated import GeneratedTask


@attrs.frozen(kw_only=True)
class Odd(GeneratedTask):
    alphabet = "0123456789>"
    longest_prompt = 5

    def train(self, seed):
        TRAIN

    def heldout(self, size):
        HELDOUT

    def grade(self, truth, answer):
        return 0.5


@attrs.frozen(kw_only=True)
class Other(DecoderOptions):
    vocabulary: int = 0

    def build(self, *, vocab_size, max_length, seed):
        model = DecoderOptions(layers=1, width=8, heads=2)
        return model.build(vocab_size=self.vocabulary, max_length=max_length, seed=seed)


@attrs.frozen(kw_only=True)
class SmallHead(DecoderOptions):
    def build(self, *, vocab_size, max_length, seed):
        from torch import nn

        model = DecoderOptions(layers=1, width=8, heads=2)
        model = model.build(vocab_size=vocab_size, max_length=max_length, seed=seed)
        model.head = nn.Linear(8, vocab_size - 1, bias=False)
        return model
"""
ENDLESS = "while True: yield Example('12>', {'truth': '12'})"
FIXED = "return [Example(f'{number}>', {'truth': ''}) for number in range(size)]"
ONE = "Example('1>', {'truth': '1'})"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def fit(
    capsys: pytest.CaptureFixture[str], *overrides: str, train: str = ENDLESS, heldout: str = FIXED
) -> tuple[int, str]:
    Path("odd.py").write_text(ODD.replace("TRAIN", train).replace("HELDOUT", heldout))
    code = main(["fit", "run.yaml", *overrides])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("return iter(())", "task: 0 training prompts are fewer than trainer.ppo_mini_batch_size = 8"),
        ("return []", "task: 0 training prompts are fewer than trainer.ppo_mini_batch_size = 8"),
        (f"yield from [{ONE}] * 3", "task: 3 training prompts are fewer than trainer.ppo_mini_batch_size = 8"),
        ("return None", "task: train returned None (NoneType), expected examples"),
        ("return '12'", "task: train returned '12' (str), expected examples"),
        ("while True: yield '12'", "task: training prompt 1 of epoch 1 is '12' (str), expected an Example"),
        ("while True: yield '1>', '1'", "task: training prompt 1 of epoch 1 is ('1>', '1') (tuple), expected an Exa"),
        ("while True: yield Example(1)", "task: training prompt 1 of epoch 1 is 1 (int), expected a text or a"),
        ("while True: yield Example([])", "task: training prompt 1 of epoch 1 is [] (list), expected a text or"),
        ("while True: yield Example(['a'])", "task: training prompt 1 of epoch 1 is ['a'] (list), expected a"),
        ("while True: yield Example('')", "task: training prompt 1 of epoch 1, '', has no tokens"),
        ("while True: yield Example('123456')", "task: 10000 prompts in a row have more than"),
        ("while True: yield Example('a')", "task: training prompt 1 of epoch 1: 'a' in 'a' is not in the alphabet"),
    ],
)  # fmt: skip
def test_training_data_that_cannot_be_used_leaves_no_run(
    train: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = fit(capsys, "trainer.total_epochs=1000000000" if "iter" in train else "seed=1", train=train)
    assert code == 2
    assert err.splitlines()[1].startswith(f"  {message}")
    assert len(err) < 1000
    assert not Path("runs").exists()


def test_a_task_whose_prompts_are_all_held_out_leaves_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    train = "return GeneratedTask.train(self, seed)\n\n    def draw(self, rng):\n        return '7>', '8'"
    code, err = fit(capsys, train=train)
    assert code == 2  # the checksum of '7>' makes it a held-out prompt
    assert err.splitlines()[1].startswith("  task: Odd(size=None) has no training prompts")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("heldout", "message"),
    [
        (f"return [{ONE}] * 3", "plugins[2]: size is 4, and the task has 3 held-out prompts"),
        ("return []", "plugins[2]: size is 4, and the task has 0 held-out prompts"),
        ("return ['12'] * size", "task: held-out prompt 1 is '12' (str), expected an Example"),
        ("return '1212'", "task: heldout returned '1212' (str), expected examples"),
        ("return None", "task: heldout returned None (NoneType), expected examples"),
    ],
)
def test_held_out_data_that_cannot_be_used_is_refused_before_the_first_step(
    heldout: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = fit(capsys, "plugins.weight_sync.canary=false", heldout=heldout)
    assert code == 2
    assert f"\n  {message}" in err
    assert "0 steps complete" in err


def line_of(code: str) -> str:
    """Return the place of a line of the task."""
    lines = Path("odd.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if code in line]
    return f"({Path('odd.py').absolute()}, line {number})"


@pytest.mark.parametrize(
    ("train", "message", "code"),
    [
        ("raise ValueError('boom')", "training prompt 1 of epoch 1 could not be read: ValueError: boom", "boom"),
        (
            f"yield {ONE}\n        yield {ONE}\n        {{}}['text']",
            "training prompt 3 of epoch 1 could not be read: KeyError: 'text'",
            "['text']",
        ),
        (
            "import json\n        yield json.loads('{')",
            "training prompt 1 of epoch 1 could not be read: JSONDecodeError: Expecting property name",
            "json.loads",
        ),
        (
            "yield Example('1>', {'truth': '1'})\n        raise StopIteration",
            "training prompt 2 of epoch 1 could not be read: RuntimeError: generator raised StopIteration",
            "raise StopIteration",
        ),
        (
            "yield Example('1>', {'truth': '1'})\n        1 / (seed - seed)",
            "training prompt 2 of epoch 1 could not be read: ZeroDivisionError: division by zero",
            "1 / (seed",
        ),
        ("open('no_such_file.txt')", "training prompt 1 of epoch 1 could not be read: FileNotFoundError: ", "no_such"),
    ],
)
def test_an_error_of_train_before_the_run_is_a_fault_with_the_prompt_and_the_line(
    train: str, message: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, err = fit(capsys, train=train)
    assert ended == 2
    _, line = err.splitlines()
    assert line.startswith(f"  task: {message}")
    assert line.endswith(line_of(code))
    assert not Path("runs").exists()


def test_an_error_of_train_during_the_run_names_the_prompt_and_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    train = "for number in range(1000): yield Example('1>', {'truth': str(1 / (number - 199))})"
    ended, err = fit(capsys, train=train)
    assert ended == 1
    assert "24 steps complete" in err
    text = "task: training prompt 200 of epoch 1 could not be read: ZeroDivisionError: division by zero"
    assert err.rstrip().endswith(f"RunError: {text} {line_of('number - 199')}")


def test_an_error_of_train_in_a_later_epoch_names_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    train = "for number in range(8):\n            if seed != EPOCH1 and number == 3: raise ValueError('later')\n"
    train += "            yield Example('1>', {'truth': '1'})"
    seed = _epoch_seed(0, 0)
    ended, err = fit(capsys, "trainer.total_epochs=3", train=train.replace("EPOCH1", str(seed)))
    assert ended == 1
    assert "RunError: task: training prompt 4 of epoch 2 could not be read: ValueError: later" in err


@pytest.mark.parametrize(
    ("heldout", "message", "code"),
    [
        ("raise ValueError('boom')", "held-out prompt 1 could not be read: ValueError: boom", "boom"),
        (
            "yield Example('1>', {'truth': '1'})\n        {}['text']",
            "held-out prompt 2 could not be read: KeyError: 'text'",
            "['text']",
        ),
        (
            "return [Example('1>', {'truth': '1'})] * int('many')",
            "held-out prompt 1 could not be read: ValueError: invalid",
            "many",
        ),
    ],
)
def test_an_error_of_heldout_is_a_fault_with_the_prompt_and_the_line(
    heldout: str, message: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, err = fit(capsys, "plugins.weight_sync.canary=false", heldout=heldout)
    assert ended == 2
    (line,) = [line for line in err.splitlines() if line.startswith("  task: ")]
    assert line.startswith(f"  task: {message}")
    assert line.endswith(line_of(code))


def test_a_task_that_exits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    ended, err = fit(capsys, train="yield Example('1>', {'truth': '1'})\n        exit(3)")
    assert ended == 3
    assert "raised by train of the task for prompt 2" in err


def test_more_held_out_prompts_than_are_asked_for_are_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = fit(capsys, "trainer.total_steps=1", heldout=f"return [{ONE}] * 1000")
    assert code == 0


def test_validation_beyond_what_a_task_has_names_both_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["task={use: sort_digits, digits: 2}", "plugins.validation.size=5000"]
    code, err = fit(capsys, *options)
    assert code == 2
    assert "plugins[2]: size is 5000, and the task has 12 held-out prompts" in err


LATE = "for number in range(1000): yield Example('123456789012' if number == 199 else '1>', {'truth': '1'})"


def test_a_later_prompt_that_is_too_long_is_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = fit(capsys, train=LATE)
    assert code == 0, err
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    assert sum(row["data/filtered_too_long"] for row in rows) == 1


def test_a_later_prompt_that_is_too_long_ends_the_run_with_its_number_if_it_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, err = fit(capsys, "rollout.overlong_prompts=error", train=LATE)
    assert code == 1
    assert "24 steps complete" in err
    found = "training prompt 200 of epoch 1, '123456789012', has 12 tokens, more than rollout.max_prompt_length = 5"
    assert f"the run failed: task: {found}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_that_are_too_long_are_cut_on_one_side(side: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = fit(capsys, f"rollout.overlong_prompts={side}", "trainer.total_steps=1", train=LATE)
    assert code == 0, err


def test_held_out_prompts_that_are_too_long_are_left_out(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    heldout = f"return [{ONE}, Example('123456789012')] * size"
    code, err = fit(capsys, "plugins.validation.size=2", "trainer.total_steps=1", heldout=heldout)
    assert code == 2
    assert "1 of 2 held-out prompts are longer than rollout.max_prompt_length, and are left out" in caplog.text
    assert "plugins[2]: size is 2, and the task has 1 held-out prompts" in err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{use: 'odd.py:Other', vocabulary: 12}", "the model reads 12 tokens, and the tokenizer of the task has 13"),
        ("{use: 'odd.py:Other', vocabulary: 14}", "the model returns logits of 14 tokens, and the tokenizer"),
        ("{use: 'odd.py:Other', vocabulary: 1}", "the model reads 1 tokens, and the tokenizer of the task has 13"),
        ("{use: 'odd.py:SmallHead'}", "the model returns logits of 12 tokens, and the tokenizer of the task has 13"),
    ],
)
def test_a_model_of_another_vocabulary_is_refused_with_both_sizes(
    model: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.yaml").write_text(f"model: {model}\n")
    Path("odd.py").write_text(ODD.replace("TRAIN", ENDLESS).replace("HELDOUT", FIXED))
    Path("run.yaml").write_text(RUN.replace("model: {use: decoder, layers: 1, width: 8, heads: 2}", f"model: {model}"))
    code, err = fit(capsys)
    assert code == 2
    assert err.splitlines()[1].startswith(f"  model: {message}")
    assert not Path("runs").exists()


DROP_ALL = """
import attrs
from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart
from hooktrainer.plugin import port
from hooktrainer.ports import ReplayBuffer


@attrs.define(kw_only=True)
class DropAll(Plugin):
    buffer: ReplayBuffer = port()

    @on(FitStart, priority=Priority.PREPARE)
    def set_filter(self, event):
        self.buffer.set_filter(lambda group: False)
"""


@pytest.mark.parametrize("size", [8, 20])
def test_a_run_whose_groups_are_all_dropped_is_no_success(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("drop.py").write_text(DROP_ALL)
    Path("more.yaml").write_text("plugins: [metric_aggregation, weight_sync, 'drop.py:DropAll']\n")
    train = f"yield from [{ONE}] * {size}"
    code, err = fit(capsys, "more.yaml", train=train)
    assert code == 1
    assert "the run failed: no step was made: the data ended before the first mini-batch was complete" in err


LOSS = "def loss(logprobs, mask):\n    return logprobs.sum()\n"


def test_a_run_without_a_complete_step_is_replaced_and_the_earlier_one_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("losses.py").write_text(LOSS)
    assert fit(capsys, "trainer.total_steps=1")[0] == 0
    before = Path("runs/run/metrics.jsonl").read_text()
    checkpoint = "plugins=[metric_aggregation, weight_sync, checkpoint, {use: log_after_collect, sinks: [jsonl]}]"
    for _ in range(3):
        code, err = fit(capsys, "algorithm.policy_loss=losses.py:loss", checkpoint)
        assert code == 2
        assert "losses.py:loss' returned a tensor of shape ()" in err
    assert fit(capsys, "trainer.total_steps=1")[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["run", "run.1"]
    assert Path("runs/run.1/metrics.jsonl").read_text() == before


def test_a_run_without_a_complete_step_keeps_files_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    Path("losses.py").write_text(LOSS)
    assert fit(capsys, "algorithm.policy_loss=losses.py:loss")[0] == 2
    Path("runs/run/notes.txt").write_text("why it failed")
    assert fit(capsys, "trainer.total_steps=1")[0] == 0
    assert Path("runs/run.1/notes.txt").read_text() == "why it failed"


def test_a_directory_of_the_user_without_a_complete_step_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("losses.py").write_text(LOSS)
    assert fit(capsys, "algorithm.policy_loss=losses.py:loss")[0] == 2
    Path("runs/run/figures").mkdir()
    Path("runs/run/figures/loss.png").write_text("x")
    assert fit(capsys, "trainer.total_steps=1")[0] == 0
    assert Path("runs/run.1/figures/loss.png").exists()
