"""Tasks: disjoint splits, partial credit, epochs and tokens."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer import ports
from hooktrainer.errors import ConfigError
from hooktrainer.models.character_tokenizer import UNREADABLE, CharTokenizer
from hooktrainer.ports import Answer, Example
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.generated import GeneratedTask, is_heldout
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.reverse import Reverse
from hooktrainer.tasks.sort_digits import SortDigits

TOKENS = np.zeros(1, np.int64)
TASKS = (SortDigits(), SortDigits(digits=2), Reverse(), Reverse(letters=2), Addition(), Addition(digits=1))


def pairs(examples: Iterable[Example]) -> list[tuple[object, str]]:
    return [(example.prompt, example.row["truth"]) for example in examples]


def first(task: ports.Task, seed: int, count: int) -> list[tuple[object, str]]:
    return pairs(itertools.islice(task.train(seed), count))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_truths_are_correct_and_use_the_alphabet(task: ports.Task) -> None:
    for text, truth in first(task, seed=3, count=50):
        question = text[:-1]
        if isinstance(task, SortDigits):
            assert truth == "".join(sorted(question))
        elif isinstance(task, Reverse):
            assert truth == question[::-1]
        else:
            assert int(truth) == sum(map(int, question.split("+")))
        assert set(text + truth) <= set(task.alphabet)
        assert len(text) <= task.longest_prompt
        assert task.score(Example(text, {"truth": truth}), [Answer(truth, TOKENS)]) == [1.0]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_heldout_prompts_are_different_fixed_and_never_trained_on(task: ports.Task) -> None:
    heldout = task.heldout(8)
    assert len({example.prompt for example in heldout}) == 8
    assert task.heldout(4) == heldout[:4]
    for seed in (0, 1, 2):
        assert not {text for text, _ in first(task, seed, 500)} & {example.prompt for example in heldout}


def test_prompts_depend_on_the_seed() -> None:
    assert first(SortDigits(), 1, 20) == first(SortDigits(), 1, 20) != first(SortDigits(), 2, 20)


def test_more_held_out_prompts_than_exist_are_an_error() -> None:
    assert len(SortDigits(digits=2).heldout(1000)) == 12


@attrs.frozen(kw_only=True)
class OneWord(GeneratedTask):
    word: str

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        return self.word, self.word


def test_task_without_training_or_held_out_prompts_is_an_error() -> None:
    words = {is_heldout(word): word for word in map(str, range(100))}

    with pytest.raises(ConfigError, match="has no training prompts"):
        first(OneWord(word=words[True]), 0, 1)
    with pytest.raises(ConfigError, match="has no held-out prompts"):
        OneWord(word=words[False]).heldout(1)


def test_epochs_of_a_finite_task_have_the_same_prompts_in_another_order() -> None:
    task = SortDigits(size=10)
    one, two = pairs(task.train(1)), pairs(task.train(2))
    assert len(one) == 10
    assert one != two
    assert sorted(one) == sorted(two)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("123", 1.0),
        ("129", 2 / 3),
        ("12", 2 / 3),
        ("1234", 3 / 4),
        ("123123", 1 / 2),
        ("231", 0.0),
        ("", 0.0),
        ("12" + UNREADABLE, 2 / 3),
    ],
)
def test_partial_credit_counts_positions_over_the_longer_text(answer: str, score: float) -> None:
    assert SortDigits(digits=3).grade("123", answer) == pytest.approx(score)


@given(truth=st.text("0123456789", max_size=8), answer=st.text("0123456789", max_size=8))
def test_only_an_exact_answer_scores_one(truth: str, answer: str) -> None:
    score = SortDigits().grade(truth, answer)
    assert 0.0 <= score <= 1.0
    assert (score == 1.0) == (truth == answer and truth != "")


@pytest.mark.parametrize("options", [{"digits": 0}, {"size": 0}])
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        SortDigits(**options)


@given(st.text("abc", max_size=20))
def test_decode_of_encode_is_the_text(text: str) -> None:
    tokenizer = CharTokenizer("abc")
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int64
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.append(tokens, [*tokenizer.eos_ids, 2])) == text


def test_special_tokens_inside_an_answer_stay_visible() -> None:
    tokenizer = CharTokenizer("ab")
    assert tokenizer.vocab_size == 4
    assert tokenizer.decode(np.array([2, tokenizer.pad_id, 3])) == f"a{UNREADABLE}b"


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_alphabet_must_have_distinct_characters(alphabet: str) -> None:
    with pytest.raises(ConfigError, match="at least one character, all different"):
        CharTokenizer(alphabet)


def test_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(ConfigError, match="'z' in 'az' is not in the alphabet 'ab'"):
        CharTokenizer("ab").encode("az")


def prompts_of(task: ports.Task, *, total_epochs: int = 1, seed: int = 0) -> TaskPrompts:
    return TaskPrompts(task, CharTokenizer(task.alphabet), seed=seed, total_epochs=total_epochs)


def test_prompt_source_is_a_port() -> None:
    assert isinstance(prompts_of(SortDigits()), ports.PromptSource)
    assert all(isinstance(task, ports.Task) for task in TASKS)


def test_batches_span_epochs_and_only_the_last_one_is_short() -> None:
    prompts = prompts_of(SortDigits(size=5), total_epochs=2)
    sizes = []
    texts = []
    while not prompts.exhausted:
        batch = prompts.take(4)
        sizes.append(len(batch))
        texts += [prompt.text for prompt in batch]
    assert sizes == [4, 4, 2]
    assert sorted(texts[:5]) == sorted(texts[5:])
    assert texts[:5] != texts[5:]
    assert prompts.take(3) == ()


def test_prompts_have_tokens_and_truth() -> None:
    prompt = prompts_of(SortDigits()).take(1)[0]
    assert len(prompt.tokens) == 7
    assert prompt.example.row["truth"] == "".join(sorted(prompt.text[:-1]))


def test_heldout_depends_on_no_seed_and_consumes_no_training_prompt() -> None:
    one, two = prompts_of(SortDigits(), seed=1), prompts_of(SortDigits(), seed=2)
    assert [prompt.text for prompt in one.heldout(5)] == [prompt.text for prompt in two.heldout(5)]
    assert [prompt.text for prompt in one.take(5)] == [
        prompt.text for prompt in prompts_of(SortDigits(), seed=1).take(5)
    ]


def test_options_of_all_components_import_no_torch() -> None:
    modules = (
        "tasks.sort_digits, tasks.reverse, tasks.addition, tasks.prompts, models.options, rollout.inline, "
        "rollout.thread, algorithms.options, algorithms.registry, learner.options, weight_sync.protocol"
    )
    imports = "; ".join(f"import hooktrainer.{module}" for module in modules.split(", "))
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
