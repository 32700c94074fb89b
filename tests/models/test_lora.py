"""LoRA adapters: trained alone, published merged, never applied twice, and never without a target."""

from __future__ import annotations

from functools import partial

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.rollouts import LENGTH, TOKENIZER, generator_config, groups
from helpers.stale_heads import policy
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.errors import SyncError
from hooktrainer.learner.options import OptimOptions
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.models.lora import LoraLinear, add_lora, merged_state, without_adapters
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Canary, Trajectory
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
from hooktrainer.weight_sync.same_host import SameHostTransport

TOKENS = np.array([4, 2, 3, 5, 2])


class Scalar(nn.Module):
    """One weight, and an adapter on it."""

    def __init__(self, base: float = 1.0, *, adapted: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.layer.weight, base)
        if adapted:
            add_lora(self, targets=["layer"], rank=1, alpha=1.0)


def adapt(module: nn.Module, delta: float) -> None:
    layer = module.get_submodule("layer")
    with torch.no_grad():
        layer.lora_a.fill_(1.0)
        layer.lora_b.fill_(delta)


def adapted_policy(*, tied: bool = False) -> nn.Module:
    model = policy(tied=tied)
    add_lora(model, targets=["qkv", "mlp_out"], rank=2, alpha=4.0)
    return model


def engine_of(model: object) -> tuple[DoubleBuffer, ModulePair]:
    modules = ModulePair(model)
    return DoubleBuffer([full_state(module) for module in modules.modules], modules), modules


class TestMergedState:
    def test_engine_receives_the_base_with_the_adapter_merged_once(self) -> None:
        learner, (engine, modules) = Scalar(1.0), engine_of(Scalar)
        adapt(learner, 0.5)
        assert learner.layer(torch.ones(1)).item() == 1.5
        SameHostTransport().publish(merged_state(learner), 1, [engine])
        assert modules.in_use.layer(torch.ones(1)).item() == 1.5
        assert list(full_state(modules.in_use)) == ["layer.weight"]
        assert not any(isinstance(module, LoraLinear) for module in modules.in_use.modules())
        assert learner.layer.weight.item() == 1.0

    def test_staged_weights_are_unaffected_by_later_training(self) -> None:
        learner, (engine, modules) = Scalar(2.0), engine_of(Scalar)
        adapt(learner, 0.5)
        engine.stage(merged_state(learner), 1)
        adapt(learner, 9.0)
        with torch.no_grad():
            learner.layer.weight.add_(1.0)
        engine.flip()
        assert modules.in_use.layer.weight.item() == 2.5

    def test_a_second_adapter_is_refused(self) -> None:
        with pytest.raises(ValueError, match="has adapters already; a second `add_lora` would apply two"):
            add_lora(Scalar(), targets=["layer"], rank=1, alpha=1.0)

    def test_unmerged_adapter_weights_are_refused(self) -> None:
        learner, (engine, _) = Scalar(), engine_of(Scalar)
        with pytest.raises(SyncError, match=r"'layer\.lora_a' is unknown to the engine"):
            SameHostTransport().publish(full_state(learner), 1, [engine])

    def test_engine_that_applies_the_adapter_twice_fails_the_canary(self) -> None:
        class Twice(DoubleBuffer):
            def logprobs(self, tokens: np.ndarray) -> np.ndarray:
                return np.full(len(tokens) - 1, -(modules.in_use.layer.weight.item() + 0.5), np.float32)

        learner, modules = Scalar(), ModulePair(Scalar)
        adapt(learner, 0.5)
        canary = Canary(tokens=np.arange(3), logprobs=np.full(2, -1.5, np.float32), atol=1e-4)
        engine = Twice([full_state(module) for module in modules.modules], modules)
        with pytest.raises(SyncError, match=r"log-probability is -2, the learner's -1\.5"):
            SameHostTransport().publish(merged_state(learner), 1, [engine], canary=canary)
        assert engine.version == -1


class TestMatching:
    def test_targets_that_match_no_layer_are_an_error(self) -> None:
        model = policy()  # four linear layers, and a head
        del model.head
        with pytest.raises(ValueError, match=r"adapter matched 0 of 4 linear layers: targets are \['qvk'\].*'qkv'\?"):
            add_lora(model, targets=["qvk"], rank=2, alpha=4.0)

    def test_one_target_without_a_match_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="target 'mlp_iin' matched 0 of 5 linear layers. Did you mean 'mlp_in'?"):
            add_lora(policy(), targets=["qkv", "mlp_iin"], rank=2, alpha=4.0)

    def test_string_in_place_of_the_list_of_targets_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"write \('qkv',\)"):
            add_lora(policy(), targets="qkv", rank=2, alpha=4.0)

    def test_adapter_for_a_tied_layer_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"weights are tied, embedding\.weight = head\.weight"):
            add_lora(policy(tied=True), targets=["head"], rank=2, alpha=4.0)

    def test_publishing_only_the_adapter_is_refused(self) -> None:
        learner, (engine, _) = Scalar(), engine_of(partial(Scalar, adapted=False))
        adapter = {name: tensor for name, tensor in full_state(learner).items() if "lora" in name}
        with pytest.raises(SyncError, match="they matched 0 of 1 of its tensors"):
            SameHostTransport().publish(adapter, 1, [engine])


def test_new_adapter_and_merging_do_not_change_the_logits() -> None:
    tokens = torch.tensor([[4, 2, 3, 5]])
    plain, adapted = policy(), adapted_policy()
    torch.testing.assert_close(adapted(tokens), plain(tokens))
    for module in adapted.modules():
        if isinstance(module, LoraLinear):
            nn.init.normal_(module.lora_b, std=0.3)
    before = adapted(tokens)
    state = {name: tensor.clone() for name, tensor in merged_state(adapted).items()}
    merged = without_adapters(adapted)
    assert list(full_state(merged)) == list(full_state(plain)) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in full_state(merged).items())
    torch.testing.assert_close(merged(tokens), before, atol=1e-4, rtol=1e-4)


def learner_of(model: nn.Module) -> PolicyGradientLearner:
    return PolicyGradientLearner(model, algorithm=AlgorithmOptions(), optim=OptimOptions(lr=0.05))


def answered(scores: tuple[float, ...]) -> list[object]:
    def answer(score: float, seed: int) -> Trajectory:
        tokens = np.random.default_rng(seed).integers(2, TOKENIZER.vocab_size, 3)
        return Trajectory(
            tokens=tokens,
            logprobs=np.full(3, -2.0, np.float32),
            score=score,
            versions=np.zeros(3, np.int64),
        )

    answers = tuple(answer(score, seed) for seed, score in enumerate(scores))
    return [attrs.evolve(group, trajectories=answers) for group in groups(2)]


class TestTraining:
    def test_only_adapters_are_trained_and_engines_receive_them(self) -> None:
        learner = learner_of(adapted_policy())
        engine = InlineOptions(n=2, max_response_length=LENGTH).build(generator_config(adapted_policy))
        transport = SameHostTransport()
        assert {name.rpartition(".")[2] for name in learner.trainable()} == {"lora_a", "lora_b"}
        base = {name: tensor.clone() for name, tensor in full_state(learner._module).items() if "lora" not in name}
        scores = []
        for version in range(3):
            canary = Canary(tokens=TOKENS, logprobs=learner.logprobs(TOKENS), atol=1e-4)
            transport.publish(learner.weights(), version, [engine], canary=canary, trained=learner.trainable())
            scores.append(engine.logprobs(TOKENS))
            learner.update(answered((0.0, 1.0)))
        assert not np.allclose(scores[0], scores[1], atol=1e-3)
        assert not np.allclose(scores[1], scores[2], atol=1e-3)
        after = full_state(learner._module)
        assert all(torch.equal(tensor, after[name]) for name, tensor in base.items())

    def test_learner_that_publishes_only_the_base_is_refused(self) -> None:
        class Forgetful(PolicyGradientLearner):
            def weights(self) -> dict[str, Tensor]:
                return {name: tensor for name, tensor in full_state(self._module).items() if "lora" not in name}

        learner = Forgetful(adapted_policy(), algorithm=AlgorithmOptions(), optim=OptimOptions(lr=0.05))
        (engine, _), transport = engine_of(policy), SameHostTransport()
        transport.publish(learner.weights(), 0, [engine], trained=learner.trainable())
        learner.update(answered((0.0, 1.0)))
        with pytest.raises(SyncError, match=r"training changed [24] of 4 tensors that are not sent themselves"):
            transport.publish(learner.weights(), 1, [engine], trained=learner.trainable())
        assert engine.version == 0

    def test_restored_learner_publishes_the_same_weights(self) -> None:
        learner, other = learner_of(adapted_policy()), learner_of(adapted_policy())
        learner.update(answered((0.0, 1.0)))
        other.load_state_dict(learner.state_dict())
        for name, tensor in learner.weights().items():
            assert torch.equal(tensor, other.weights()[name]), name
