"""Tokenizers of transformers: end tokens, special tokens, chat templates and pickling."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from transformers import GenerationConfig

from helpers.huggingface_models import END_OF_TURN, EOS, PAD, save_model, tokenizer
from hooktrainer.errors import ConfigError
from hooktrainer.models.huggingface_options import HuggingFaceOptions
from hooktrainer.models.huggingface_tokenizer import HuggingFaceTokenizer
from hooktrainer.ports import Tokenizer
from hooktrainer.tasks.addition import Addition

MESSAGES = [{"role": "system", "content": "Add."}, {"role": "user", "content": "3+4="}]


def wrapped(*, chat: bool = False, ends: tuple[int, ...] = (1,)) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(tokenizer(chat), eos_ids=ends, chat=chat)


@pytest.mark.parametrize("text", ["3+4=", "sort these digits", " a  b\n\tc ", "Straße: 12 €", ""])
def test_a_text_is_encoded_and_decoded(text: str) -> None:
    made = wrapped()
    assert isinstance(made, Tokenizer)
    assert made.decode(made.encode(text)) == text
    assert made.encode(text).dtype == np.int64


def test_every_end_token_ends_the_text_and_special_tokens_are_left_out() -> None:
    inner = tokenizer()
    pad, end, turn = inner.convert_tokens_to_ids([PAD, EOS, END_OF_TURN])
    made = wrapped(ends=(end, turn))
    word = made.encode("sum").tolist()
    assert made.eos_ids == {end, turn}
    assert made.pad_id == pad
    for last in (end, turn):
        assert made.decode(np.array([*word, pad, last, *word])) == "sum"
    assert wrapped(ends=(end,)).decode(np.array([*word, turn, *word])) == "sumsum"


def test_messages_are_encoded_with_the_chat_template() -> None:
    made, inner = wrapped(chat=True), tokenizer(chat=True)
    whole = "<system>Add.<end_of_turn><user>3+4=<end_of_turn><assistant>"
    assert inner.decode(made.encode(MESSAGES)) == whole
    assert inner.decode(made.encode("3+4=")) == "<user>3+4=<end_of_turn><assistant>"
    assert inner.convert_tokens_to_ids(END_OF_TURN) in made.encode(MESSAGES)
    assert made.decode(made.encode(MESSAGES)) == "<system>Add.<user>3+4=<assistant>"


def test_messages_without_a_chat_template_are_refused() -> None:
    with pytest.raises(ConfigError, match="the prompt is a list of messages, and the tokenizer has no chat template"):
        wrapped().encode(MESSAGES)


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no end token"):
        wrapped(ends=())


def test_a_pickled_tokenizer_encodes_the_same() -> None:
    made = wrapped(chat=True)
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.encode(MESSAGES), made.encode(MESSAGES))
    assert again.eos_ids == made.eos_ids


def test_end_tokens_of_the_generation_settings_are_used_too(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    GenerationConfig(eos_token_id=[1, 2]).save_pretrained(folder)
    assert HuggingFaceOptions(path=str(folder)).tokenizer(Addition()).eos_ids == {1, 2}


@pytest.mark.parametrize(("setting", "start"), [("auto", "<user>3"), ("none", "3"), ("own.jinja", "[3")])
def test_the_chat_template_is_that_of_the_tokenizer_none_or_one_of_a_file(
    setting: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.jinja").write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    folder = save_model(tmp_path / "model", chat=True)
    made = HuggingFaceOptions(path=str(folder), chat_template=setting).tokenizer(Addition())
    assert made.decode(made.encode("3+4=")).startswith(start)
