"""Log-probabilities in chunks equal those of all logits at once, and take the memory of one chunk."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.learners import CPU, GROUPS, VOCAB, build, drifted, gradients, learner, on_policy, values
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.models import preparation
from hooktrainer.models.huggingface import HuggingFacePolicy
from hooktrainer.models.lora import add_lora
from hooktrainer.models.scoring import Scoring, TokenScores, chunk_size, text_logprobs, token_logprobs
from hooktrainer.ports import Group

BATCH = PaddedBatch.of(GROUPS, pad_id=0, device=CPU)
POSITIONS = BATCH.responses.numel()
CHUNKS = [1, 3, 7, POSITIONS - 1, POSITIONS]
GROUPS_OF_ANOTHER_POLICY = drifted(on_policy(GROUPS, build()))


def llama(dtype: str = "float32", *, lora: bool = False, checkpointing: bool = False) -> HuggingFacePolicy:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, attn_implementation="sdpa", **sizes, **heads)
    lm = LlamaForCausalLM(config)
    if checkpointing:
        lm.activation_checkpointing_enable({"use_reentrant": False})
    policy = HuggingFacePolicy(lm, dtype)
    if lora:
        add_lora(policy, targets=["q_proj", "v_proj", "down_proj"], rank=2, alpha=4.0)
        draw_adapters(policy)
    return policy


def small(*, lora: bool = False, **options: object) -> nn.Module:
    model = build(**options)
    if lora:
        add_lora(model, targets=["qkv", "mlp_out", "head"], rank=2, alpha=4.0)
        draw_adapters(model)
    return model.double()


def draw_adapters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))


class OnlyLogits(nn.Module):
    """A policy without hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build(torch.float64)

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        return self.model(tokens, left_pad, logits_to_keep=logits_to_keep)


def scored(model: nn.Module, chunk: int | None, **options: Any) -> TokenScores:
    tokens = BATCH.tokens[:, :-1]
    return token_logprobs(model, tokens, BATCH.left_pad, BATCH.responses, Scoring(0.7, chunk), **options)


def assert_close(found: object, expected: object, dtype: torch.dtype) -> None:
    tolerance = {"rtol": 0, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, expected, **tolerance)


class TestChunks:
    @pytest.mark.parametrize("make", [small, llama])
    @pytest.mark.parametrize("chunk", CHUNKS)
    def test_chunks_change_no_score_and_no_gradient(self, make: Any, chunk: int) -> None:
        whole, model = make(), make()
        dtype = next(model.parameters()).dtype
        weights = torch.linspace(-1.0, 1.0, POSITIONS, dtype=dtype).view_as(BATCH.responses)
        for each, size in ((whole, None), (model, chunk)):
            scores = scored(each, size, entropy="differentiable")
            (weights * (scores.logprobs + 0.3 * scores.entropies)).sum().backward()
        one, other = (scored(whole, size, entropy="differentiable") for size in (None, chunk))
        assert_close(other[:2], one[:2], dtype)
        assert_close(gradients(model), gradients(whole), dtype)

    @pytest.mark.parametrize("entropy", ["none", "detached"])
    def test_entropy_has_no_gradient_unless_requested(self, entropy: str) -> None:
        for chunk in (None, 3, POSITIONS):
            found = scored(small(), chunk, entropy=entropy).entropies
            assert found is None if entropy == "none" else not found.requires_grad

    def test_a_small_batch_is_computed_once_and_a_large_one_again_in_the_backward_pass(self) -> None:
        for chunk, calls in ((POSITIONS, 1), (POSITIONS - 1, 4)):
            model = Recording()
            scored(model, chunk).logprobs.sum().backward()
            assert len(model.seen) == calls

    def test_without_gradients_nothing_is_computed_twice(self) -> None:
        model = Recording()
        with torch.no_grad():
            scored(model, 3)
        assert sum(model.seen) == POSITIONS

    @pytest.mark.parametrize("chunk", [None, 3])
    def test_log_softmax_of_half_precision_is_in_single_precision(self, chunk: int | None) -> None:
        model = llama("bfloat16")
        found = scored(model, chunk, entropy="detached")
        logits = model(BATCH.tokens[:, :-1], BATCH.left_pad, logits_to_keep=BATCH.responses.shape[1])
        assert logits.dtype == torch.bfloat16
        expected = torch.log_softmax(logits.float() / 0.7, dim=-1).gather(-1, BATCH.responses[..., None])[..., 0]
        assert (found.logprobs.dtype, found.entropies.dtype) == (torch.float32, torch.float32)
        torch.testing.assert_close(found.logprobs, expected, atol=0.02, rtol=0)

    def test_size_of_a_chunk(self) -> None:
        assert [chunk_size(vocabulary) for vocabulary in (16, 10_000, 50_000, 250_000)] == [250_000, 400, 128, 128]


class Recording(nn.Module):
    """A policy that records for how many positions logits are computed at once."""

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        self.model = build() if model is None else model
        self.width = self.model.width
        self.seen: list[int] = []

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        return self.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))

    def hidden(self, *args: Any, **options: Any) -> Tensor:
        return self.model.hidden(*args, **options)

    def project(self, states: Tensor) -> Tensor:
        self.seen.append(states.shape[:-1].numel())
        return self.model.project(states)


class TestMemory:
    @pytest.mark.parametrize("use", ["none", "value_head", "model"])
    def test_no_pass_of_a_learner_computes_more_logits_than_those_of_a_chunk(
        self, use: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preparation, "chunk_size", lambda _: 2)
        model = Recording()
        options = {"kl_coeff": 0.1, "entropy_coeff": 0.1, "proximal_policy": "recompute", "iterations_per_step": 2}
        critic = {} if use == "none" else {"adv_estimator": "gae", "critic_use": use}
        made = learner(model, **options, **critic)
        made.start_step(1)
        networks = [part for part in _networks(made) if isinstance(part, Recording)]
        for network in networks:
            network.seen.clear()

        made.update(on_policy(GROUPS, model.model))
        made.logprobs(np.array([2, 3, 4, 5, 6]))

        assert [max(network.seen, default=0) for network in networks] == [2, 2, 2, *([0] if use == "model" else [])]

    def test_projection_of_the_learner_has_the_size_of_its_vocabulary(self) -> None:
        made = learner(build())
        assert made._models.scoring.chunk == chunk_size(VOCAB)
        assert learner(OnlyLogits())._models.scoring.chunk is None


def _networks(made: Any) -> list[nn.Module]:
    models = made._models
    critic = [] if models.critic is None or models.critic.own is None else [models.critic.own]
    return [models.policy, models.proximal.module, models.reference, *critic]


class TestForward:
    @pytest.mark.parametrize("chunk", [3, POSITIONS, None])
    def test_hooks_of_the_module_run_once_for_each_pass(self, chunk: int | None) -> None:
        model, seen = build(), []
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda *_: seen.append("after"))
        for _ in range(2):
            scored(model, chunk).logprobs.sum().backward()
        assert seen == ["before", "after"] * 2

    def test_hidden_states_may_be_those_of_a_call_of_the_module(self) -> None:
        class Calling(Recording):
            def forward(self, *args: Any, **options: Any) -> Tensor:
                return self.model(*args, **options)

            def hidden(self, tokens: Tensor, *args: Any, **options: Any) -> Tensor:
                self(tokens)
                return super().hidden(tokens, *args, **options)

        model = Calling()
        torch.testing.assert_close(scored(model, 3).logprobs, scored(build(), None).logprobs)

    def test_a_pass_that_fails_leaves_the_forward_method(self) -> None:
        model = build()
        model.forward = model.forward
        other = build()
        for each in (model, other):
            with pytest.raises(ValueError, match="exceed the 16 tokens"):
                token_logprobs(each, torch.zeros(1, 99), None, torch.zeros(1, 1), Scoring(1.0, 1))
            torch.testing.assert_close(scored(each, 3).logprobs, scored(build(), None).logprobs)
        assert "forward" in vars(model)
        assert "forward" not in vars(other)


class TestOtherModels:
    def test_a_model_whose_projected_states_differ_is_trained_on_its_own_logits(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Sharper(Recording):
            def forward(self, *args: Any, **options: Any) -> Tensor:
                return 3 * super().forward(*args, **options)

        class Broken(Recording):
            def forward(self, *args: Any, **options: Any) -> Tensor:
                return self.model(*args, **options)

            def project(self, states: Tensor) -> Tensor:
                raise RuntimeError("no head")

        with caplog.at_level(logging.WARNING, logger="hooktrainer"):
            made = learner(Sharper()), learner(Broken())
        assert [each._models.scoring.chunk for each in made] == [None, None]
        assert "model: Sharper gives log-probabilities in `forward` that differ by up to" in caplog.messages[0]
        assert "model: Broken fails in `project(hidden(tokens))`: no head" in caplog.messages[1]
        values(made[0].update(on_policy(GROUPS, Sharper())))

    def test_text_of_a_canary_is_scored_alike_in_chunks(self) -> None:
        text = np.array([2, 3, 4, 5, 6, 1])
        whole = text_logprobs(build(), text, Scoring(0.7))
        np.testing.assert_allclose(text_logprobs(build(), text, Scoring(0.7, 2)), whole, rtol=1e-6)


def by_hand(model: nn.Module, groups: list[Group]) -> Tensor:
    """The clipped loss of GRPO with an entropy bonus: one text at a time, without padding."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        scores = torch.tensor([answer.score for answer in group.trajectories], dtype=torch.float64)
        advantages = (scores - scores.mean()) / (scores.std() + 1e-6)
        for answer, advantage in zip(group.trajectories, advantages, strict=True):
            text = torch.tensor([[*group.prompt.tokens, *answer.tokens]])
            policy = torch.log_softmax(model(text[:, :-1])[0, len(group.prompt.tokens) - 1 :], dim=-1)
            logprobs = policy[torch.arange(len(answer.tokens)), torch.from_numpy(answer.tokens)]
            ratio = (logprobs - torch.from_numpy(answer.logprobs)).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            total = total - (gain - 0.01 * (policy.exp() * policy).sum(dim=-1)).sum()
            count += len(answer.tokens)
    return total / count


MICRO_BATCHES = [{}, {"micro_batch_size": 1}, {"micro_batch_size": 2}, {"micro_batch_tokens": 12}]


@pytest.mark.parametrize("micro_batches", MICRO_BATCHES, ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (small, {}),
        (small, {"lora": True}),
        (small, {"tied": True, "positions": "rotary"}),
        (OnlyLogits, {}),
        (llama, {}),
        (llama, {"lora": True, "checkpointing": True}),
        (llama, {"checkpointing": True}),
    ],
)
def test_loss_and_gradient_equal_those_of_a_loss_written_by_hand(
    make: Any,
    options: dict[str, Any],
    chunk: int,
    micro_batches: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "chunk_size", lambda _: chunk)
    plain, model = make(**options), make(**options)
    loss = by_hand(plain.eval(), GROUPS_OF_ANOTHER_POLICY)
    loss.backward()

    made = learner(model, entropy_coeff=0.01, **micro_batches)
    found = values(made.update(GROUPS_OF_ANOTHER_POLICY))

    single = isinstance(model, HuggingFacePolicy)
    entropy = 0.01 * found["actor/entropy"]
    assert found["actor/pg_loss"] - entropy == pytest.approx(loss.item(), rel=1e-5 if single else 1e-10)
    expected = gradients(plain)
    for name, gradient in gradients(model).items():
        error = (gradient - expected[name]).abs().max() / expected[name].abs().max()
        assert float(error) < (1e-5 if single else 1e-10), name
