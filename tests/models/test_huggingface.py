"""Policies of transformers: they sample from what the learner trains, and models that cannot are refused."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
import torch
from torch import nn

from helpers.huggingface_models import ARCHITECTURES, VOCABULARY, WINDOW, language_model
from helpers.learners import learner, values
from helpers.rollouts import Queue, publish
from hooktrainer.errors import ConfigError
from hooktrainer.models.huggingface import HuggingFacePolicy
from hooktrainer.models.policy import Policy, Trunk, full_state
from hooktrainer.models.preparation import prepare_policy
from hooktrainer.models.probe import check_policy
from hooktrainer.models.vocabulary import check_vocabulary
from hooktrainer.ports import Answer, Example, Group, Prompt, Tokens
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.inline import InlineOptions

LENGTH = 6
PROMPT_LENGTHS = [2, WINDOW + 3, 5, 3 * WINDOW, 1, WINDOW]


class Numbers:
    """A tokenizer whose text is a list of token ids."""

    vocab_size, pad_id, eos_ids = VOCABULARY, 0, frozenset({1})

    def encode(self, prompt: object) -> Tokens:
        raise NotImplementedError

    def decode(self, tokens: Tokens) -> str:
        return " ".join(map(str, tokens.tolist()))


class HalfOfTheTokens:
    """A task that scores the parity of the first token, so that the answers of a group differ."""

    size = None

    def train(self, seed: int) -> Sequence[Example]:
        raise NotImplementedError

    def heldout(self, size: int) -> Sequence[Example]:
        raise NotImplementedError

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:
        return [float(answer.tokens[0] % 2) for answer in answers]


def policy(architecture: str, attention: str | None = None, **options: object) -> HuggingFacePolicy:
    return HuggingFacePolicy(language_model(architecture, attention, **options))


def sampled(model: nn.Module, temperature: float = 1.0, lengths: Sequence[int] = PROMPT_LENGTHS) -> list[Group]:
    """Return groups with ragged prompts, decoded together in a few slots."""
    config = GeneratorConfig(
        policy=lambda: HuggingFacePolicy(
            language_model(model.lm.config.model_type, model.lm.config._attn_implementation)
        ),
        tokenizer=Numbers(),
        task=HalfOfTheTokens(),
        seed=0,
        max_length=max(lengths) + LENGTH,
    )
    engine = InlineOptions(n=2, max_response_length=LENGTH, slots=3, temperature=temperature).build(config)
    publish(engine, 0, full_state(model))
    rng = np.random.default_rng(0)
    prompts = [Prompt(Example(f"prompt {length}"), rng.integers(2, VOCABULARY, length)) for length in lengths]
    pending = [Group(number=number, stamp=1, prompt=prompt) for number, prompt in enumerate(prompts)]
    queue = Queue(pending)
    engine.start(queue)
    engine.pump()
    engine.close()
    assert queue.failed == {}
    return [attrs.evolve(group, trajectories=tuple(queue.finished[group.number])) for group in pending]


KINDS = [(architecture, attention) for architecture in ARCHITECTURES for attention in ("sdpa", "eager")]
KINDS.remove(("gemma2", "sdpa"))  # transformers refuses it


@pytest.mark.parametrize(("architecture", "attention"), KINDS)
def test_sampled_log_probabilities_equal_those_of_the_learner(architecture: str, attention: str) -> None:
    model = policy(architecture, attention)
    check_policy(model)
    groups = sampled(model)
    assert max(len(group.prompt.tokens) for group in groups) > WINDOW
    made = learner(model, lr=1e-9)
    for group in groups:
        for answer in group.trajectories:
            text = np.concatenate([group.prompt.tokens, answer.tokens])
            found = made.logprobs(text)[len(group.prompt.tokens) - 1 :]
            np.testing.assert_allclose(found, answer.logprobs, atol=1e-4)
    with torch.no_grad():  # and those of the plain model
        (first, *_), group = groups[3].trajectories, groups[3]
        text = torch.from_numpy(np.concatenate([group.prompt.tokens, first.tokens]))
        plain = torch.log_softmax(model.lm(input_ids=text[None]).logits[0].double(), dim=-1)
    right = plain[len(group.prompt.tokens) - 1 : -1].gather(1, text[len(group.prompt.tokens) :, None])[:, 0]
    np.testing.assert_allclose(right, first.logprobs, atol=1e-4)


DROPOUT = {
    "llama": {"attention_dropout": 0.5},
    "gpt2": {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5},
    "qwen3_moe": {"attention_dropout": 0.5, "router_aux_loss_coef": 0.1},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_first_update_is_on_policy(architecture: str) -> None:
    model = policy(architecture, **DROPOUT.get(architecture, {}))
    prepare_policy(model, uses_states=True)
    groups = sampled(model, temperature=0.8)
    found = values(learner(model, lr=1e-4, temperature=0.8).update(groups))
    assert abs(found["actor/ppo_kl"]) < 1e-5
    assert found["actor/pg_clipfrac"] == 0.0
    assert found["actor/grad_norm"] > 0.0


@pytest.mark.parametrize("architecture", ["mamba", "rwkv", "jamba", "recurrent_gemma"])
def test_an_architecture_without_a_plain_key_value_cache_is_refused_by_name(architecture: str) -> None:
    options = {"use_mamba_kernels": False, "mamba_d_conv": 2} if architecture == "jamba" else {}
    model = policy(architecture, **options)
    with pytest.raises(ConfigError, match=type(model.lm).__name__ + " cannot be trained"):
        check_policy(model)


class Shifted(HuggingFacePolicy):
    """A policy that counts positions from 1."""

    def decode(self, tokens: torch.Tensor, cache: object) -> torch.Tensor:
        cache.lengths = [length + 1 for length in cache.lengths]
        return super().decode(tokens, cache)


def test_a_policy_that_decodes_other_logits_than_the_plain_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="the logits of decoded tokens differ from those of the plain model"):
        check_policy(Shifted(language_model("llama")))


def test_a_policy_of_transformers_has_states_for_a_critic_and_may_have_padded_tokens() -> None:
    model = policy("gemma2")
    assert isinstance(model, Policy)
    assert isinstance(model, Trunk)
    check_vocabulary(model, VOCABULARY)
    check_vocabulary(model, VOCABULARY - 7)
    with pytest.raises(ConfigError, match="the model reads 300 tokens, and the tokenizer of the task has 301"):
        check_vocabulary(model, VOCABULARY + 1)
    tokens = torch.arange(2, 12)[None]
    assert torch.equal(model(tokens), model.project(model.hidden(tokens)))
    last = model(tokens, logits_to_keep=3)
    torch.testing.assert_close(last, model(tokens)[:, -3:])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_float32_and_matrix_products_in_the_configured_precision(dtype: str) -> None:
    model = HuggingFacePolicy(language_model("llama"), dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokens = torch.arange(2, 12)[None]
    logits = model(tokens).detach()
    assert logits.dtype == getattr(torch, dtype)
    exact = policy("llama")(tokens).detach()
    assert 0.0 < float((logits.float() - exact).abs().max()) < 0.1 * float(exact.abs().max())


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3_text", "gpt_neox"])
def test_recomputed_layers_have_the_same_gradient_and_run_twice(architecture: str) -> None:
    plain, recomputed = policy(architecture), policy(architecture, **DROPOUT.get(architecture, {}))
    recomputed.recompute_layers()
    recomputed.eval()
    calls = []
    for part in recomputed.modules():
        if type(part).__name__.endswith("MLP"):
            part.register_forward_pre_hook(lambda *_: calls.append(1))
    tokens = torch.arange(2, 12)[None]
    for model in (plain, recomputed):
        model(tokens).square().mean().backward()
    assert len(calls) == 2 * len({id(part) for part in plain.modules() if type(part).__name__.endswith("MLP")})
    for (name, one), other in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    with torch.no_grad():
        recomputed(tokens)
    assert not any(part.training for part in recomputed.modules())
