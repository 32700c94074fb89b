"""All passes of the learner and its engines run in evaluation mode, so that equal weights give equal results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.learners import GROUPS, build, learner, on_policy, values
from hooktrainer import build_trainer, load_config
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.errors import ConfigError
from hooktrainer.models.lora import add_lora


class Wrapped(nn.Module):
    """A model with a further layer between its hidden states and its head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.model, self.layer = build(), layer
        self.width = self.model.width

    def hidden(self, *args: object, **options: object) -> Tensor:
        return self.layer(self.model.hidden(*args, **options))

    def project(self, states: Tensor) -> Tensor:
        return self.model.project(states)

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        return self.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))


class Always(nn.Module):
    """Calls a function of the states in every mode."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, states: Tensor) -> Tensor:
        return self.function(states)


class OverTokens(nn.BatchNorm1d):
    """Batch statistics over all tokens."""

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states.flatten(0, 1)).view_as(states)


def first_update(layer: nn.Module, **options: object) -> dict[str, float]:
    model = Wrapped(layer)
    groups = on_policy(GROUPS, model.eval())
    made = learner(model.train(), **options)
    made.start_step(1)
    return values(made.update(groups))


def assert_on_policy(found: dict[str, float]) -> None:
    assert found["actor/log_ratio_abs"] == pytest.approx(0.0, abs=1e-6)
    assert found["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert found["actor/pg_clipfrac"] == 0.0
    assert found.get("actor/kl", 0.0) == pytest.approx(0.0, abs=1e-6)
    assert found.get("rollout_corr/log_ratio_abs", 0.0) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("proximal", ["bypass", "recompute"])
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"kl_coeff": 0.1},
        {"adv_estimator": "gae", "critic_use": "value_head"},
        {"adv_estimator": "gae", "critic_use": "model"},
        {"adv_estimator": "gae", "critic_use": "model", "kl_coeff": 0.1, "iterations_per_step": 2},
    ],
)
def test_first_update_with_dropout_is_on_policy(p: float, proximal: str, others: dict[str, object]) -> None:
    assert_on_policy(first_update(nn.Dropout(p), proximal_policy=proximal, **others))


@pytest.mark.parametrize("proximal", ["bypass", "recompute"])
@pytest.mark.parametrize("layer", [lambda: OverTokens(16), lambda: nn.Sequential(nn.AlphaDropout(0.3))])
def test_first_update_with_layers_that_depend_on_the_mode_is_on_policy(
    layer: Callable[[], nn.Module], proximal: str
) -> None:
    found = first_update(layer(), proximal_policy=proximal, kl_coeff=0.1, micro_batch_size=2)
    assert_on_policy(found)


@pytest.mark.parametrize("proximal", ["bypass", "recompute"])
def test_first_update_with_dropout_in_an_adapter_is_on_policy(proximal: str) -> None:
    model = build()
    add_lora(model, targets=["qkv"], rank=2, alpha=4.0)
    nn.init.normal_(model.layers[0].qkv.lora_b)
    model.layers[0].qkv.register_forward_pre_hook(
        lambda module, args: functional.dropout(args[0], 0.2, module.training)
    )
    groups = on_policy(GROUPS, model.eval())
    assert_on_policy(values(learner(model.train(), proximal_policy=proximal).update(groups)))


def test_batch_statistics_are_not_updated() -> None:
    layer = OverTokens(16)
    first_update(layer)
    assert layer.num_batches_tracked == 0
    assert layer.running_mean.unique().tolist() == [0.0]


def broken(logprobs: Tensor) -> TokenLoss:
    raise RuntimeError("a loss of the user")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_an_update_restores_the_mode_of_every_module(training: bool, fails: bool) -> None:
    model = Wrapped(nn.Dropout(0.1)).train(training)
    model.model.norm.train(not training)
    made = learner(model, **({"policy_loss": f"{__name__}:broken"} if fails else {}))
    before = {name: part.training for name, part in model.named_modules()}
    if fails:
        with pytest.raises(RuntimeError, match="a loss of the user"):
            made.update(GROUPS)
    else:
        made.update(GROUPS)
    assert {name: part.training for name, part in model.named_modules()} == before


def test_an_update_is_the_same_after_train_was_called() -> None:
    groups = on_policy(GROUPS, Wrapped(nn.Dropout(0.1)).eval())
    one, other = Wrapped(nn.Dropout(0.1)), Wrapped(nn.Dropout(0.1))
    first, second = learner(one), learner(other)
    one.train(), other.eval()
    assert values(first.update(groups)) == values(second.update(groups))


LAYERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "dropout": (lambda states: functional.dropout(states, 0.1, training=True), "draws random numbers in two passes"),
    "noise that torch does not draw": (
        lambda states: states + np.random.normal(0.0, 1.0),  # noqa: NPY002
        "gives log-probabilities that differ by up to",
    ),
    "statistics of the batch": (
        lambda states: functional.batch_norm(states.flatten(0, 1), None, None, training=True).view_as(states),
        "gives log-probabilities of a text that change by up to .* with the other texts of its batch",
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", [{}, {"adv_estimator": "gae", "critic_use": "value_head"}])
def test_a_policy_that_differs_from_itself_in_evaluation_mode_is_refused(kind: str, options: dict[str, object]) -> None:
    function, message = LAYERS[kind]
    with pytest.raises(ConfigError, match=f"^model: Wrapped {message}"):
        learner(Wrapped(Always(function)), **options)


def test_dropout_of_an_adapter_that_does_nothing_yet_is_refused() -> None:
    model = build()
    add_lora(model, targets=["qkv"], rank=2, alpha=4.0)
    adapter = model.layers[0].qkv
    adapter.register_forward_pre_hook(lambda _, args: (args[0], functional.dropout(args[0], 0.2, training=True))[:1])
    with pytest.raises(ConfigError, match="model: Decoder draws random numbers"):
        learner(model)


class Doubled(Wrapped):
    """Its states lead to other logits than a whole pass does."""

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        return 20.0 * super().forward(tokens, left_pad, logits_to_keep=logits_to_keep)


def test_states_of_another_policy_than_the_logits_are_refused_with_a_value_head() -> None:
    learner(Doubled(nn.Identity()))
    with pytest.raises(ConfigError, match=r"model: Doubled gives .* from those of `project\(hidden\(tokens\)\)`"):
        learner(Doubled(nn.Identity()), adv_estimator="gae", critic_use="value_head")


def test_the_check_changes_neither_random_numbers_nor_modes() -> None:
    model = Wrapped(nn.Dropout(0.1))
    before = torch.get_rng_state()
    learner(model)
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    assert model.layer.training


MODEL = """
import attrs
import torch
from torch import nn

from hooktrainer.models.options import CharacterModel, DecoderOptions

class Dropped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.width = model, model.width

    def forward(self, tokens, left_pad=None, *, logits_to_keep=None):
        return self.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))

    def hidden(self, tokens, left_pad=None, *, states_to_keep=None):
        return self.model.hidden(tokens, left_pad, states_to_keep=states_to_keep)

    def project(self, states):
        return self.model.project(nn.functional.dropout(states, 0.1, TRAINING))

    def new_cache(self, rows, length):
        return self.model.new_cache(rows, length)

    def prefill(self, tokens, lengths, cache):
        return self.model.prefill(tokens, lengths, cache)

    def decode(self, tokens, cache):
        return self.model.decode(tokens, cache)

@attrs.frozen(kw_only=True)
class Model(CharacterModel):
    def build(self, *, vocab_size, max_length, seed):
        options = DecoderOptions(layers=1, width=16, heads=2)
        return Dropped(options.build(vocab_size=vocab_size, max_length=max_length, seed=seed))
"""
RUN = """
task: {use: sort_digits, digits: 3}
model: {use: 'model.py:Model'}
rollout: {use: inline, n: 4}
trainer: {total_steps: 1, train_batch_size: 4, ppo_mini_batch_size: 4}
plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [jsonl]}]
run: {dir: OUT}
"""


def config_of(folder: Path, training: str) -> Path:
    (folder / "model.py").write_text(MODEL.replace("TRAINING", training), encoding="utf-8")
    path = folder / "run.yaml"
    path.write_text(RUN.replace("OUT", str(folder / "runs")), encoding="utf-8")
    return path


@pytest.mark.parametrize("proximal", ["bypass", "recompute"])
def test_a_model_from_a_file_with_dropout_is_on_policy_in_the_first_update(tmp_path: Path, proximal: str) -> None:
    options = [f"algorithm.proximal_policy={proximal}", "algorithm.kl_coeff=0.1"]
    build_trainer(load_config(config_of(tmp_path, "self.training"), overrides=options)).fit()
    (file,) = tmp_path.glob("runs/*/metrics.jsonl")
    (row,) = map(json.loads, file.read_text().splitlines())
    assert_on_policy(row)


def test_a_model_from_a_file_with_dropout_in_evaluation_mode_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^model: Dropped draws random numbers"):
        build_trainer(load_config(config_of(tmp_path, "True")))
    assert not (tmp_path / "runs").exists()
