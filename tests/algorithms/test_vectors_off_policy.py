"""Corrections, divergences, aggregation and the user's own losses on vectors of nine digits, in both precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tokens import HIDDEN as _
from helpers.tokens import assert_vector, bools, ints, slope, tensor, totals_of
from hooktrainer.algorithms import corrections, registry
from hooktrainer.algorithms.aggregation import Totals, token_mean
from hooktrainer.algorithms.divergence import Divergence, divergence_sums
from hooktrainer.algorithms.kl import kl
from hooktrainer.algorithms.logprobs import entropy, log_policy
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.algorithms.proximal import log_linear
from hooktrainer.algorithms.rejection import rejection
from hooktrainer.ports import Batch, Example, Group, Prompt, Trajectory

Dtype = torch.dtype
MY_LOSSES = Path(__file__).parents[2] / "examples" / "my_losses.py"
LOG_RATIO = [[0.004, -0.002, 0.006, 0], [0.8, -0.9, 0.1, _], [1.7, 0.2, _, _], [-0.6, -0.3, _, _]]
NEAR = [1.00400801, 0.998001999, 1.00601804, 1]
FAR = [0.548811636, 0.740818221, _, _]
LOSS = [[1, 2, 3, 4], [-1, 5, _, _], [6, _, _, _], [0.5, _, 1.5, 2], [_, _, _, _]]
PROMPTS = [0, 0, 1, 1, 1]


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    return request.param


def visible(rows: list[list[Any]]) -> torch.Tensor:
    return bools([[value is not _ for value in row] for row in rows])


def of_user(name: str, **args: object) -> Any:
    inputs = {"logprobs", "proximal", "behaviour", "advantages", "mask"}
    return registry.bind(f"{MY_LOSSES}:{name}", registry.POLICY_LOSSES, inputs=inputs, args=args)


def test_sapo_of_the_user(dtype: Dtype) -> None:
    logprobs = tensor([[-3.5, -2.9, -2.6, -3.5, -2.9, -2.6]], dtype)
    given = {
        "proximal": tensor([[-3] * 6], dtype),
        "behaviour": torch.full((1, 6), torch.nan, dtype=dtype),
        "advantages": tensor([[2, 2, 2, -2, -2, -2]], dtype),
        "mask": bools([[1] * 6]),
    }
    sapo = of_user("sapo", tau_pos=1, tau_neg=1.05)

    loss = [-3.22305926, -4.21014817, -4.96428952, 3.03359067, 4.01965215, 4.77188046]
    assert_vector(sapo(given | {"logprobs": logprobs}).loss, [loss])
    gradient = [-1.16729578, -2.20424098, -2.81025195, 1.1627356, 2.20361691, 2.79324433]
    assert_vector(slope(lambda x: sapo(given | {"logprobs": x}).loss, logprobs), [gradient])


def test_dppo_of_the_user(dtype: Dtype) -> None:
    logprobs = tensor([[-0.9, -1.2, -1.8, -0.9, -1.2, -1.8]], dtype)
    given = {
        "proximal": torch.full((1, 6), torch.nan, dtype=dtype),
        "behaviour": tensor([[-1.6, -1.2, -0.9, -1.6, -1.2, -0.9]], dtype),
        "advantages": tensor([[1, 1, 1, -1, -1, -1]], dtype),
        "mask": bools([[1] * 6]),
    }
    dppo = of_user("dppo_binary_tv", tv_low=0.2, tv_high=0.2, kl_tau=0.001)

    result: TokenLoss = dppo(given | {"logprobs": logprobs})
    assert_vector(result.loss, [[0.00049, -1, -0.40575966, 2.01424271, 1, 0.00081]])
    assert (1 - result.stats["pg_clipfrac"]).tolist() == [[0, 1, 1, 1, 1, 0]]
    gradient = [0.0014, -1, -0.40836966, 2.01515271, 1, -0.0018]
    assert_vector(slope(lambda x: dppo(given | {"logprobs": x}).loss, logprobs), [gradient])


def test_log_linear_proximal_policy(dtype: Dtype) -> None:
    behaviour, logprobs = tensor([[-2] * 5], dtype), tensor([[-1] * 5], dtype).requires_grad_()
    versions = ints([5, 4, 3, 1, -1])[None]

    found = log_linear(behaviour, logprobs, sampler_version=versions, proximal_version=4, current_version=5)

    assert not found.requires_grad
    assert_vector(found, [[-2, -2, -1.5, -1.25, -2]])


def test_behaviour_weights(dtype: Dtype) -> None:
    log_ratio, mask = tensor(LOG_RATIO, dtype), visible(LOG_RATIO)

    def check(name: str, expected: list[list[Any]], **bounds: float) -> None:
        assert_vector(getattr(corrections, name)(log_ratio, mask, **bounds), expected)

    check("tis_token", [NEAR, [2, 0.40656966, 1.10517092, _], [2, 1.22140276, _, _], FAR], high=2.0)
    check("icepop", [NEAR, [0, 0, 1.10517092, _], [0, 1.22140276, _, _], FAR], low=0.5, high=2.0)
    check("icepop", [NEAR, [2.22554093, 0, 1.10517092, _], [0, 1.22140276, _, _], FAR], low=0.5, high=5.0)
    check("mis_token", [NEAR, [0, 0, 1.10517092, _], [0, 1.22140276, _, _], FAR], low=0.5, high=2.0)
    products, low = [1.00803209] * 4, 0.40656966
    check("tis_sequence", [products, [1, 1, 1, _], [2, 2, _, _], [low, low, _, _]], high=2.0)
    check("mis_sequence", [products, [1, 1, 1, _], [0, 0, _, _], [low, low, _, _]], high=2.0)
    kept = [[1] * 4, [1, 1, 1, _], [0, 0, _, _], [0, 0, _, _]]
    check("mask_geometric", kept, low=0.99, high=1.01)
    check("mask_product", kept, low=0.5, high=2.0)
    free = {"low": 0.0, "high": 1e9}
    check("tis_token", [NEAR, [2.22554093, low, 1.10517092, _], [5.47394739, 1.22140276, _, _], FAR], **free)
    check("tis_sequence", [products, [1, 1, 1, _], [6.68589444] * 2 + [_, _], [low, low, _, _]], **free)
    geometric = rejection(log_ratio, mask, {"seq_mean_k1": [0.99, 1.01]})
    assert geometric.tolist() == [[True] * 4, [True, True, True, False], [False] * 4, [False] * 4]


def test_effective_sample_size_and_divergences(dtype: Dtype) -> None:
    log_ratio, mask = tensor(LOG_RATIO, dtype), visible(LOG_RATIO)

    def measured(weights: torch.Tensor | None) -> Divergence:
        return Divergence(**{key: value.item() for key, value in divergence_sums(log_ratio, mask, weights).items()})

    tolerance = {"rel": 1e-7 if dtype is torch.float64 else 5e-6, "abs": 1e-9 if dtype is torch.float64 else 1e-6}
    raw = measured(None)
    assert measured(corrections.tis_token(log_ratio, mask)).effective_sample_size == pytest.approx(
        0.835725316, **tolerance
    )
    assert raw.effective_sample_size == pytest.approx(0.527280618, **tolerance)
    icepop = corrections.icepop(log_ratio, mask, low=0.5, high=2.0)
    assert measured(icepop).effective_sample_size == pytest.approx(0.697216665, **tolerance)
    assert (raw.chi2, raw.k1, raw.k3) == pytest.approx((2.87834337, -0.0916363636, 0.33838996), **tolerance)


@pytest.mark.parametrize(
    ("gaps", "tau", "kept"),
    [
        ([0.1, -0.5, 0.3, 0, 0.9, -0.2], 0.04, [1, 0, 1, 1, 0, 1]),
        ([0.1, -0.5, 0.3, 0, 0.9, -0.2], 0.15, [1, 1, 1, 1, 0, 1]),
        ([0.5, -0.6], 0.1, [1, 0]),
    ],
)
def test_m2po_of_the_user(dtype: Dtype, gaps: list[float], tau: float, kept: list[int]) -> None:
    proximal = torch.full((1, len(gaps)), -2.0, dtype=dtype)
    given = {"logprobs": proximal, "proximal": proximal, "behaviour": proximal + tensor([gaps], dtype)}
    given |= {"advantages": torch.ones_like(proximal), "mask": torch.ones_like(proximal, dtype=torch.bool)}

    result = of_user("m2po", m2_tau=tau)(given)

    assert result.loss.tolist() == [[-float(keep) for keep in kept]]
    assert result.stats["pg_dropfrac"].tolist() == [[1.0 - keep for keep in kept]]


def test_opsm_of_the_user(dtype: Dtype) -> None:
    gaps = [[0.2, 0.1, _], [0.3, -0.2, _], [0.4, 0.3, -0.1], [0.6, _, _]]
    mask, proximal = visible(gaps), torch.full((4, 3), -2.0, dtype=dtype)
    given = {"logprobs": proximal, "proximal": proximal, "behaviour": proximal + tensor(gaps, dtype), "mask": mask}

    result = of_user("opsm", opsm_delta=0.1)(given | {"advantages": tensor([[-1], [-1], [1], [-0.5]], dtype)})

    assert result.loss.tolist() == [[0, 0, 0], [1, 1, 0], [-1, -1, -1], [0, 0, 0]]
    assert result.stats["pg_dropfrac"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", [-0.5, 0.5, 0, -2, 3], [1, 1, 1, 1, 1]),
        ("k2", [0.125, 0.125, 0, 2, 4.5], [-0.5, 0.5, 0, -2, 3]),
        (
            "k3",
            [0.148721271, 0.10653066, 0, 4.3890561, 2.04978707],
            [-0.648721271, 0.39346934, 0, -6.3890561, 0.950212932],
        ),
    ],
)
def test_divergence_estimators(dtype: Dtype, estimator: str, value: list[float], gradient: list[float]) -> None:
    logprobs, mask = tensor([[-1, -2, -1.5, -4, -0.5]], dtype), bools([[1] * 5])
    reference = logprobs + tensor([[0.5, -0.5, 0, 2, -3]], dtype)

    assert_vector(kl(logprobs, reference, mask, estimator=estimator), [value])
    assert_vector(slope(lambda x: kl(x, reference, mask, estimator=estimator), logprobs), [gradient])


@pytest.mark.parametrize(
    ("temperature", "expected", "batch"),
    [
        (1.0, [0.947536964, 1.38629436, 0.656054198], 1.16691566),
        (0.5, [0.455428623, 1.38629436, 0.13199346], 0.920861492),
    ],
)
def test_entropy(dtype: Dtype, temperature: float, expected: list[float], batch: float) -> None:
    logits, mask = tensor([[[2, 1, 0, -1], [0, 0, 0, 0], [1, -1, 3, 0.5]]], dtype), bools([[1, 1, 0]])
    found = entropy(log_policy(logits, temperature))
    assert_vector(found, [expected])
    assert_vector(token_mean(found, mask, totals_of(mask, ints([0]))), batch)


MODES = {
    "token-mean": 2.4,
    "seq-mean-token-mean": 2.95833333,
    "seq-mean-token-sum": 6,
    "seq-mean-token-sum-norm": 0.75,
    "prompt-mean": 2.41666667,
}


def test_every_aggregation_mode_on_a_ragged_mask_with_an_empty_answer(dtype: Dtype) -> None:
    loss, mask, groups = tensor(LOSS, dtype), visible(LOSS), ints(PROMPTS)
    totals = totals_of(mask, groups)
    assert totals == Totals(tokens=10, sequences=4, prompt_tokens=(6, 4))
    available = {"values": loss, "mask": mask, "groups": groups, "totals": totals, "max_response_length": 8}

    assert MODES.keys() == registry.LOSS_AGG_MODES.keys()
    for mode, expected in MODES.items():
        assert_vector(registry.bind(mode, registry.LOSS_AGG_MODES, inputs=available)(available), expected)


def test_a_mean_per_micro_batch_would_depend_on_the_split(dtype: Dtype) -> None:
    loss, mask, groups = tensor(LOSS, dtype), visible(LOSS), ints(PROMPTS)
    means = [token_mean(loss[i:j], mask[i:j], totals_of(mask[i:j], groups[i:j])) for i, j in ((0, 3), (3, 5))]
    assert_vector(torch.stack(means).mean(), 2.0952381)


def test_ages_of_a_group_with_several_versions() -> None:
    versions = np.array([3, 4, 5])
    answer = Trajectory(tokens=versions, logprobs=np.zeros(3, dtype=np.float32), score=0.0, versions=versions)
    group = Group(number=0, stamp=4, prompt=Prompt(Example(""), versions), trajectories=(answer,))

    ages = Batch(groups=(group,)).ages(step=7, iteration=2, updates_per_step=4)

    assert ages["groups"] == (4,)  # an age of 3: 2 in flight, 1 in the queue
    assert ages["in_flight"] == (2,)
    assert ages["spans"] == (3,)
    assert ages["updates_behind"] == (14,)
