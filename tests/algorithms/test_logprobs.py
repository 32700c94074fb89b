"""Log-probabilities and entropy, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hooktrainer.algorithms.logprobs import entropy, log_policy, of_tokens


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_entropy_matches_the_formula_at_the_sampling_temperature(temperature: float) -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = (logits / temperature).tolist()
    for row, found in zip(scaled, entropy(log_policy(logits, temperature)).tolist(), strict=True):
        total = math.log(sum(map(math.exp, row)))
        assert found == pytest.approx(total - sum(math.exp(z - total) * z for z in row), rel=1e-12)


def test_gradients_of_log_probabilities_and_entropy_pass_gradcheck() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[0, 3, 1], [2, 2, 0]])
    assert torch.autograd.gradcheck(lambda x: entropy(log_policy(x, 0.7)), (logits,))
    assert torch.autograd.gradcheck(lambda x: of_tokens(log_policy(x, 0.7), tokens), (logits,))


def test_token_with_probability_0_adds_no_entropy() -> None:
    assert entropy(log_policy(torch.tensor([0.0, 0.0, -math.inf]), 1.0)).item() == pytest.approx(math.log(2))


def test_of_tokens_selects_the_log_probabilities_of_tokens() -> None:
    logits = torch.log(torch.tensor([[[0.2, 0.8], [0.5, 0.5]]]))
    found = of_tokens(log_policy(logits, 1.0), torch.tensor([[1, 0]]))
    torch.testing.assert_close(found, torch.log(torch.tensor([[0.8, 0.5]])))


def test_half_precision_logits_are_converted_to_float32() -> None:
    assert log_policy(torch.zeros(2, dtype=torch.bfloat16), 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("logits", "temperature"), [([110.0, 0.0, 0.5], 1.0), ([12.0, 0.0, 0.5], 0.1), ([1.0, 2.0, -math.inf], 1.0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_the_entropy_is_finite_if_a_probability_underflows(
    logits: list[float], temperature: float, dtype: torch.dtype
) -> None:
    leaf = torch.tensor(logits, dtype=dtype, requires_grad=True)
    found = entropy(log_policy(leaf, temperature))
    found.backward()
    # dH / dz_i = -p_i (log p_i + H) / T, and 0 for what cannot be sampled.
    known = torch.tensor(logits, dtype=torch.float64) / temperature
    share = known.softmax(0)
    terms = torch.where(share > 0, share * known.log_softmax(0), 0.0)
    right = -(terms - share * terms.sum()) / temperature
    assert found.item() == pytest.approx(float(-terms.sum()), rel=1e-5, abs=1e-30)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.double(), right, rtol=1e-5, atol=1e-7)
