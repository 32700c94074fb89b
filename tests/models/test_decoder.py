"""The transformer: padding and caching change nothing, weights are repeatable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hooktrainer.models.decoder import Decoder, rotary_table, rotate
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.policy import Policy, full_state

VOCAB = 11


@pytest.fixture(params=["learned", "rotary"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return build(positions=request.param)


def build(**options: str | bool) -> Decoder:
    model = DecoderOptions(layers=2, width=16, heads=2, **options).build(vocab_size=VOCAB, max_length=16, seed=0)
    assert isinstance(model, Decoder)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_decoder_implements_the_policy_protocol() -> None:
    assert isinstance(build(), Policy)


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"positions": "rotary", "mlp_ratio": 3, "layers": 1}], ids=str)
def test_the_estimated_size_is_that_of_the_model(options: dict[str, Any]) -> None:
    configured = DecoderOptions(**{"layers": 2, "width": 16, "heads": 2, **options})
    size = configured.size(vocab_size=VOCAB, max_length=12)
    model = configured.build(vocab_size=VOCAB, max_length=12, seed=0)
    assert isinstance(model, Decoder)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert size.cache_bytes_per_token * 3 * 12 == model.new_cache(3, 12)._memory.nbytes


@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 4]], ids=["even", "ragged"])
@torch.no_grad()
def test_cached_decoding_gives_the_logits_of_a_full_forward(model: Decoder, lengths: list[int]) -> None:
    sequence = tokens(3, 12)
    full = model(sequence)
    cache = model.new_cache(3, 12)

    logits = [model.prefill(sequence[:, :5], lengths, cache)]
    for place in range(6):
        following = sequence[torch.arange(3), torch.tensor(lengths) + place]
        logits += [model.decode(following, cache)]

    for row, length in enumerate(lengths):
        expected = full[row, length - 1 : length + 6]
        torch.testing.assert_close(torch.stack(logits)[:, row], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_right_padding_does_not_change_the_logits(model: Decoder) -> None:
    short, padded = tokens(2, 3), tokens(2, 8, seed=9)
    padded[:, :3] = short

    logits = model.prefill(padded, [3, 3], model.new_cache(2, 8))

    torch.testing.assert_close(logits, model(short)[:, -1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_left_padding_does_not_change_the_logits(model: Decoder) -> None:
    sequence = tokens(2, 6)
    padded = torch.cat([tokens(2, 3, seed=9), sequence], dim=1)

    logits = model(padded, torch.tensor([3, 3]))[:, 3:]

    torch.testing.assert_close(logits, model(sequence), atol=1e-5, rtol=0)


@torch.no_grad()
def test_attention_is_causal(model: Decoder) -> None:
    sequence = tokens(1, 8)
    changed = sequence.clone()
    changed[0, 5] = (changed[0, 5] + 1) % VOCAB

    before, after = model(sequence), model(changed)

    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=0)
    assert (before[:, 5:] - after[:, 5:]).abs().amax(dim=-1).min() > 1e-3


@torch.no_grad()
def test_rows_of_a_cache_are_copied_kept_and_moved(model: Decoder) -> None:
    texts = tokens(3, 5)
    prompts, cache = model.new_cache(3, 5), model.new_cache(8, 9)
    model.prefill(texts, [5, 3, 4], prompts)

    cache.append(prompts, [0, 0, 2])
    cache.append(prompts, [1, 2])
    cache.keep([0, 4, 3])
    following = tokens(3, 1, seed=5)[:, 0]
    logits = model.decode(following, cache)

    assert cache.lengths == [6, 5, 4]
    for row, (text, length) in enumerate([(0, 5), (2, 4), (1, 3)]):
        alone = torch.cat([texts[text, :length], following[row : row + 1]])[None]
        torch.testing.assert_close(logits[row], model(alone)[0, -1], atol=1e-5, rtol=0)
    assert prompts.lengths == [5, 3, 4]


@torch.no_grad()
def test_logits_to_keep_returns_the_last_logits(model: Decoder) -> None:
    sequence = tokens(2, 6)
    torch.testing.assert_close(model(sequence, logits_to_keep=2), model(sequence)[:, -2:], atol=1e-6, rtol=0)


def test_gradients_are_finite_with_padding(model: Decoder) -> None:
    model(tokens(2, 6), torch.tensor([0, 5]))[:, -1].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_more_tokens_than_the_maximum_length_are_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="17 tokens exceed the 16 tokens that the model was built for"):
        model(tokens(1, 17))
    cache = model.new_cache(1, 16)
    model.prefill(tokens(1, 16), [16], cache)
    with pytest.raises(ValueError, match="17 tokens exceed the 16 tokens that the model was built for"):
        model.decode(torch.tensor([0]), cache)


def test_seed_determines_the_weights_without_changing_the_global_generator() -> None:
    state = torch.get_rng_state()
    first, second = full_state(build()), full_state(build())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_tied_weights_share_memory() -> None:
    tied, untied = full_state(build(tied=True)), full_state(build(tied=False))
    assert tied["head.weight"].data_ptr() == tied["embedding.weight"].data_ptr()
    assert untied["head.weight"].data_ptr() != untied["embedding.weight"].data_ptr()


def test_full_state_includes_buffers() -> None:
    assert "rotary" in full_state(build(positions="rotary"))


def test_rotary_scores_depend_on_the_distance_only_and_rotation_keeps_norms() -> None:
    cosines, sines = rotary_table(8, 4).unbind()
    query, key = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.0, 0.0])

    def turned(vector: torch.Tensor, place: int) -> torch.Tensor:
        return rotate(vector, cosines[place], sines[place])

    torch.testing.assert_close(turned(query, 5) @ turned(key, 3), turned(query, 2) @ turned(key, 0))
    torch.testing.assert_close(turned(query, 7).norm(), query.norm())
    torch.testing.assert_close(
        turned(torch.tensor([1.0, 0.0, 0.0, 0.0]), 1), torch.tensor([0.54030231, 0.0, 0.84147098, 0.0])
    )


def test_width_that_does_not_fit_rotary_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="4 heads with rotary positions require a multiple of 8"):
        DecoderOptions(width=36, heads=4, positions="rotary")
    DecoderOptions(width=36, heads=4)
