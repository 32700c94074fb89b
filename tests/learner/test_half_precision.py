"""Weights in half precision are trained in float32, since small updates are lost in half precision."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.learners import GROUPS, build, copied, learner, on_policy, values
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import CheckpointError, ConfigError
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.models.lora import LoraLinear, add_lora
from hooktrainer.models.policy import full_state

HALVES = [torch.bfloat16, torch.float16]


def moved(model: nn.Module, **options: object) -> int:
    """Number of weights that 20 updates change."""
    groups = on_policy(GROUPS, build())
    before = copied(model)
    made = learner(model, lr=1e-5, weight_decay=0.01, **options)
    for _ in range(20):
        made.update(groups)
    return sum(int((before[name].float() != weight.float()).sum()) for name, weight in full_state(model).items())


def mixed(dtype: torch.dtype) -> nn.Module:
    """A model with a head in half precision."""
    model = build()
    model.head.to(dtype)
    return model


def converted(share: str) -> str:
    return (
        f"model: {share} tensors of Decoder are in half precision, where small updates are lost. They are converted to "
        "float32 for training and sampling"
    )


def only_floats(state: object) -> bool:
    if isinstance(state, dict):
        return all(map(only_floats, state.values()))
    return not isinstance(state, torch.Tensor) or state.dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}, {"tied": True}])
def test_as_many_weights_change_as_in_single_precision(dtype: torch.dtype, options: dict[str, object]) -> None:
    assert moved(build(dtype, **options)) == moved(build(**options))
    assert moved(mixed(dtype)) == moved(build())


def test_nearly_all_weights_change_in_bfloat16() -> None:
    assert moved(build(torch.bfloat16)) >= 3440  # of 3,600; 101 without the conversion


@pytest.mark.parametrize("dtype", HALVES)
def test_networks_and_optimizer_states_are_in_single_precision(dtype: torch.dtype) -> None:
    options = {"adv_estimator": "gae", "kl_coeff": 0.1, "proximal_policy": "recompute", "iterations_per_step": 2}
    for use in ("value_head", "model"):
        made = learner(build(dtype), critic_use=use, **options)
        made.update(GROUPS)
        assert only_floats(made.state_dict())
        assert only_floats(dict(made.weights()))


def adapted(dtype: torch.dtype) -> nn.Module:
    model = build(dtype)
    add_lora(model, targets=["qkv", "mlp_out"], rank=2, alpha=4.0)
    return model


@pytest.mark.parametrize("dtype", HALVES)
def test_adapters_on_a_base_in_half_precision_change_what_is_published(dtype: torch.dtype) -> None:
    assert moved(adapted(dtype)) == moved(adapted(torch.float32)) > 0

    model = adapted(dtype)
    made = learner(model, lr=1e-5)
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    made.update(on_policy(GROUPS, build()))
    published = made.weights()
    (layer, *_) = [name for name, part in model.named_modules() if isinstance(part, LoraLinear)]
    assert (published[f"{layer}.weight"] != before[f"{layer}.weight"]).float().mean() > 0.9


def test_the_conversion_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hooktrainer"):
        learner(mixed(torch.bfloat16))
        learner(build())
        learner(build(torch.float64))
    assert caplog.messages == [converted("1 of 10")]


def test_tied_tensors_are_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    learner(build(torch.bfloat16, tied=True, positions="rotary"))
    assert caplog.messages == [converted("9 of 9")]


def test_tied_frozen_and_wider_tensors_are_unchanged() -> None:
    model = build(torch.bfloat16, tied=True)
    model.positions.weight.requires_grad_(requires_grad=False)
    learner(model)
    assert model.head.weight is model.embedding.weight
    assert not model.positions.weight.requires_grad
    wide = build(torch.float64)
    learner(wide)
    assert {tensor.dtype for tensor in full_state(wide).values()} == {torch.float64}


class Narrowing(nn.Module):
    """A model that casts inside its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build(torch.bfloat16)

    def forward(self, tokens: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        states = self.model.hidden(tokens).to(torch.bfloat16)
        return self.model.project(states)


def test_a_model_that_cannot_compute_in_single_precision_is_refused() -> None:
    message = r"^model: Narrowing .*converted to float32.*, and its forward pass fails with them: .*same dtype"
    with pytest.raises(ConfigError, match=message):
        learner(Narrowing())


def halved(state: object) -> object:
    if isinstance(state, dict):
        return {key: halved(value) for key, value in state.items()}
    return state.bfloat16() if isinstance(state, torch.Tensor) and state.dim() else state


def trained(updates: int) -> PolicyGradientLearner:
    made = learner(build(torch.bfloat16), lr=1e-5)
    for _ in range(updates):
        made.update(on_policy(GROUPS, build()))
    return made


def test_a_restored_learner_continues_bit_for_bit() -> None:
    unbroken, saved = trained(5), copy.deepcopy(trained(3).state_dict())
    restored = trained(0)
    restored.load_state_dict(saved)
    for _ in range(2):
        restored.update(on_policy(GROUPS, build()))
    for name, weight in unbroken.weights().items():
        assert torch.equal(weight, restored.weights()[name])


def test_a_checkpoint_in_half_precision_is_restored_into_single_precision_but_not_the_reverse() -> None:
    narrow = halved(copy.deepcopy(trained(3).state_dict()))
    restored = trained(0)
    restored.load_state_dict(narrow)
    assert only_floats(restored.state_dict())
    values(restored.update(on_policy(GROUPS, build())))
    with pytest.raises(CheckpointError, match=r"\(7, 16\) float64, here \(7, 16\) float32"):
        restored.load_state_dict(learner(build(torch.float64)).state_dict())


MODEL = """
import attrs
import torch
from hooktrainer.models.options import CharacterModel, DecoderOptions

@attrs.frozen(kw_only=True)
class Model(CharacterModel):
    def build(self, *, vocab_size, max_length, seed):
        options = DecoderOptions(layers=1, width=16, heads=2)
        return options.build(vocab_size=vocab_size, max_length=max_length, seed=seed).to(torch.bfloat16)
"""
RUN = """
task: {use: sort_digits, digits: 3}
model: {use: 'model.py:Model'}
rollout: {use: ENGINE, n: 4}
optim: {lr: 1.0e-5}
trainer: {total_steps: 2, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}
plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [jsonl]}]
run: {dir: OUT}
"""


@pytest.mark.parametrize("engine", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_run_samples_and_trains_in_single_precision(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("OUT", str(tmp_path / "runs")).replace("ENGINE", engine), encoding="utf-8")
    trainer = build_trainer(load_config(path))

    result = trainer.fit()

    assert (result.status, result.step) == ("completed", 2), result.reason
    assert [message for message in caplog.messages if "half precision" in message] == [converted("10 of 10")]
    assert not [message for message in caplog.messages if "cast to the dtype" in message]
    (file,) = tmp_path.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(row["weight_sync/canary_error"] < 1e-4 for row in rows)
