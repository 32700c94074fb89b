"""A sync reads each published tensor once and merges each adapter once, verification included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.rollouts import LENGTH, TASK, generator_config
from helpers.stale_heads import policy
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.models.lora import LoraLinear, add_lora, merged_state
from hooktrainer.models.policy import full_state
from hooktrainer.models.scoring import Scoring, text_logprobs
from hooktrainer.ports import Floats, RolloutEngine, Tokens, Weights, WeightSource
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.testing import FakeBuffer, FakeBus, FakeLearner, FakePrompts, ManualClock
from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
from hooktrainer.weight_sync.same_host import SameHostTransport
from hooktrainer_plugins.weight_sync import WeightSync


class Counting(Mapping[str, Tensor]):
    """Weights that count how often each of them is read."""

    def __init__(self, weights: Mapping[str, Tensor], reads: Counter[str]) -> None:
        self._weights = weights
        self._reads = reads

    def __getitem__(self, name: str) -> Tensor:
        self._reads[name] += 1
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class CountingSource(Counting):
    """The same, with a description for which no tensor is read."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError("a membership test reads the tensor of a mapping that computes it")

    def spec(self) -> Weights:
        spec = self._weights.spec() if isinstance(self._weights, WeightSource) else self._weights
        return {name: tensor.to("meta") for name, tensor in spec.items()}


class Trained(FakeLearner):
    """A learner of a module, with adapters or without."""

    def __init__(self, module: nn.Module, kind: type[Counting] = Counting) -> None:
        super().__init__()
        self.module, self.kind, self.reads = module, kind, Counter[str]()

    def weights(self) -> Weights:
        return self.kind(merged_state(self.module), self.reads)

    def trainable(self) -> Weights:
        return {name: own.detach() for name, own in self.module.named_parameters() if own.requires_grad}

    def logprobs(self, tokens: Tokens) -> Floats:
        return text_logprobs(self.module, tokens, Scoring())


class Prompts(FakePrompts):
    def heldout(self, count: int) -> Sequence[object]:
        from helpers.rollouts import groups

        return [group.prompt for group in groups(count)]


def adapted(*, tied: bool = False) -> nn.Module:
    model = policy(tied=tied)
    add_lora(model, targets=["qkv", "mlp_out"], rank=2, alpha=4.0)
    for module in model.modules():
        if isinstance(module, LoraLinear):
            nn.init.normal_(module.lora_b, std=0.3, generator=torch.Generator().manual_seed(0))
    return model


@pytest.fixture(params=["inline", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[RolloutEngine]:
    options = {"inline": InlineOptions, "process": ProcessOptions}[request.param](n=2, max_response_length=LENGTH)
    engine = options.build(generator_config(policy, TASK, 0))
    yield engine
    engine.close()


@pytest.mark.parametrize("kind", [Counting, CountingSource])
@pytest.mark.parametrize("make", [policy, adapted])
def test_every_tensor_is_read_once_per_sync_including_the_canary(
    make: type[nn.Module], kind: type[Counting], engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, merges = Trained(make(), kind), Counter[int]()
    merged = LoraLinear.merged
    monkeypatch.setattr(LoraLinear, "merged", lambda layer: (merges.update([id(layer)]), merged(layer))[1])
    plugin = WeightSync(
        learner=learner,
        engine=engine,
        transport=SameHostTransport(),
        buffer=FakeBuffer(),
        prompts=Prompts(),
        clock=ManualClock(),
        bucket_mb=0.001,
    )
    bus = FakeBus(plugin, provides=["metrics.row"])
    bus.fire(FitStart)
    for step in (1, 2):
        with torch.no_grad():
            for parameter in learner.module.parameters():
                parameter.mul_(1.01)
        learner.reads.clear()
        merges.clear()

        bus.fire(StepEnd, step=step)

        assert learner.reads == dict.fromkeys(full_state(policy()), 1)
        layers = [own for own in learner.module.modules() if isinstance(own, LoraLinear)]
        assert merges == {id(layer): 1 for layer in layers}
        assert bus.row["weight_sync/buckets"] > 1


def test_engines_of_several_dtypes_share_one_read() -> None:
    reads, weights = Counter[str](), full_state(policy(tied=True))
    pairs = [ModulePair(partial(make, tied=tied)) for make, tied in ((policy, True), (policy, False), (half, True))]
    engines = [DoubleBuffer([full_state(module) for module in own.modules], own) for own in pairs]

    SameHostTransport().publish(CountingSourceOfTied(weights, reads), 1, engines, bucket_bytes=1)

    assert set(reads.values()) == {1}
    assert reads["embedding.weight"] + reads["head.weight"] == 1
    for own in pairs:
        for name, tensor in full_state(own.in_use).items():
            assert torch.equal(tensor, weights[name].to(tensor.dtype)), name


class CountingSourceOfTied(CountingSource):
    def spec(self) -> Weights:
        return self._weights


def half(*, tied: bool) -> nn.Module:
    return policy(tied=tied).to(torch.bfloat16)


def test_spec_of_merged_weights_needs_no_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted()
    state = merged_state(model)
    monkeypatch.delattr(LoraLinear, "merged")
    assert isinstance(state, WeightSource)
    assert not isinstance(full_state(model), WeightSource)
    plain = full_state(policy())
    assert {name: (own.shape, own.dtype) for name, own in state.spec().items()} == {
        name: (own.shape, own.dtype) for name, own in plain.items()
    }
    assert all(name in state for name in plain)
    assert "layers.0.qkv.lora_a" not in state
    assert np.array_equal(list(state), list(plain))
