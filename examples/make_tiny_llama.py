"""Make a tiny language model in the format of Hugging Face, with which configs/huggingface.yaml starts.

python examples/make_tiny_llama.py runs/tiny_llama

The tokenizer learns byte pairs from questions of the task. The model is a small Llama with random weights, trained on
solutions until it solves a part of them. Without this almost every answer scores 0, so that reinforcement learning has
no signal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hooktrainer.ports import Example
from hooktrainer.tasks.reasoning_gym import ReasoningGym

TASK = ReasoningGym(name="spell_backward", args={"min_word_len": 3, "max_word_len": 3})
PAD, EOS, NO_LABEL = "<pad>", "<eos>", -100
VOCABULARY = 294  # 256 bytes, two special tokens, and the words of the question
BATCH = 64
UNSEEN = 256  # questions that decide when to stop


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a tokenizer and a model, and save both in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accuracy", type=float, default=0.3, help="share of new questions solved, at which to stop")
    parser.add_argument("--steps", type=int, default=200, help="most training steps on solutions")
    parser.add_argument("--seed", type=int, default=0, help="determines the initial weights and the questions")
    parser.add_argument(
        "--heads", type=int, default=4, help="attention heads; vLLM on CPUs needs heads of 32, which is 2"
    )
    parser.add_argument("--untied", action="store_true", help="give the head weights of its own, as vLLM needs it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    examples = iter(TASK.train(options.seed))
    tokenizer = make_tokenizer(islice(examples, 1000))
    model = make_model(tokenizer, heads=options.heads, tied=not options.untied)
    train(model, tokenizer, examples, options.steps, options.accuracy)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


def make_tokenizer(examples: Iterator[Example]) -> PreTrainedTokenizerFast:
    """Train a tokenizer of byte pairs."""
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pairs.train_from_iterator((example.text for example in examples), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pairs, pad_token=PAD, eos_token=EOS)  # type: ignore[no-untyped-call]


def make_model(tokenizer: PreTrainedTokenizerFast, heads: int = 4, *, tied: bool = True) -> LlamaForCausalLM:
    """Return a model of 0.13 million random weights, a few more if they are not tied."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=tied,
        )
    )


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterator[Example],
    steps: int,
    accuracy: float,
) -> None:
    """Train a model to predict the tokens of solutions, until it solves a share of questions it was not trained on."""
    unseen = make_batch(tokenizer, list(islice(examples, UNSEEN)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0)
    for _ in range(steps):
        if share_solved(model, *unseen) >= accuracy:
            return
        tokens, labels = make_batch(tokenizer, list(islice(examples, BATCH)))
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def share_solved(model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> float:
    """Return the share of solutions whose every token is the most likely one."""
    likely, expected = model(input_ids=tokens).logits[:, :-1].argmax(-1), labels[:, 1:]
    solved: Tensor = ((likely == expected) | (expected == NO_LABEL)).all(1)
    return float(solved.float().mean())


def make_batch(tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Return tokens of questions and solutions, padded on the right, and labels for the solutions only."""
    prompts = [tokenizer.encode(example.text) for example in examples]
    answers = [tokenizer.encode(example.row["truth"] + EOS) for example in examples]
    tokens = [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]
    labels = [row.clone() for row in tokens]
    for row, prompt in zip(labels, prompts, strict=True):
        row[: len(prompt)] = NO_LABEL
    pad = nn.utils.rnn.pad_sequence
    return pad(tokens, batch_first=True), pad(labels, batch_first=True, padding_value=NO_LABEL)


if __name__ == "__main__":
    main()
