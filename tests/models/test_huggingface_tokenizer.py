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
from hooktrainer.ports import ObservationTokenizer, Tokenizer
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


class TestObservations:
    """The tokens of a turn, its end token and an observation are those of the whole conversation."""

    def test_observation_is_written_by_the_chat_template(self) -> None:
        inner = tokenizer(chat=True)
        end = inner.convert_tokens_to_ids(END_OF_TURN)
        made = wrapped(chat=True, ends=(1, end))
        assert isinstance(made, ObservationTokenizer)
        observation = [{"role": "tool", "content": "7"}]
        found = made.encode_observation(observation)
        assert inner.decode(found) == "<tool>7<end_of_turn><assistant>"
        turn = inner.encode("calc", add_special_tokens=False)
        whole = made.encode([*MESSAGES, {"role": "assistant", "content": "calc"}, *observation])
        assert [*made.encode(MESSAGES), *turn, end, *found] == whole.tolist()
        assert found.dtype == np.int64

    def test_plain_text_is_a_message_of_the_user(self) -> None:
        inner = tokenizer(chat=True)
        end = inner.convert_tokens_to_ids(END_OF_TURN)
        found = wrapped(chat=True, ends=(1, end)).encode_observation("7")
        assert inner.decode(found) == "<user>7<end_of_turn><assistant>"

    def test_end_of_a_turn_that_is_no_end_token_is_written(self) -> None:
        found = wrapped(chat=True, ends=(1,)).encode_observation("7")
        assert tokenizer(chat=True).decode(found) == "<end_of_turn><user>7<end_of_turn><assistant>"

    def test_without_a_template_an_observation_is_its_text(self) -> None:
        assert wrapped().decode(wrapped().encode_observation("3+4=")) == "3+4="

    def test_messages_without_a_template_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="the observation is a list of messages, and the tokenizer has no chat"):
            wrapped().encode_observation(MESSAGES)

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ raise_exception('no tools') }}", "the chat template cannot write an observation: .*no tools"),
            ("{{ messages[-1].content }}", "the chat template leaves out earlier turns"),
        ],
    )
    def test_template_that_cannot_write_observations_is_an_error(self, template: str, message: str) -> None:
        inner = tokenizer(chat=True)
        inner.chat_template = template
        with pytest.raises(ConfigError, match=message):
            HuggingFaceTokenizer(inner, eos_ids=(1,), chat=True).encode_observation("7")


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
