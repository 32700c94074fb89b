"""Print answers of a trained model to prompts, or to held-out prompts of a task with their scores."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hooktrainer._util.streams import write_result
from hooktrainer.cli._config import load
from hooktrainer.cli._trained import add_model_argument, trained_model
from hooktrainer.errors import ConfigError

if TYPE_CHECKING:
    from hooktrainer.ports import Prompt, Trajectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the prompts, and how they are answered."""
    add_model_argument(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated. Without one, lines of the input"
    )
    prompts.add_argument(
        "--task", nargs="+", metavar="CONFIG", help="answer and score held-out prompts of the task of a configuration"
    )
    parser.add_argument("--size", type=_count, default=8, metavar="N", help="held-out prompts of --task (default: 8)")
    parser.add_argument("-n", type=_count, default=1, metavar="N", help="answers to each prompt (default: 1)")
    parser.add_argument(
        "--temperature", type=_temperature, default=0.0, metavar="T", help="sampling temperature (default: 0, greedy)"
    )
    parser.add_argument(
        "--max-response-length", type=_count, metavar="N", help="tokens of an answer (default: those of the run)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Print each prompt and its answers."""
    if args.n > 1 and not args.temperature:
        raise ConfigError(f"-n {args.n} greedy answers would all be equal; sample them with --temperature 1.0")
    texts = None if args.task else _texts(args.prompt)
    answers = _answers(args, texts)
    write = _json if args.json else _plain
    write_result("".join(write(prompt, answer, scored=texts is None) for prompt, answer in answers))
    return 0


def _answers(args: argparse.Namespace, texts: Sequence[str] | None) -> list[tuple[Prompt, Trajectory]]:
    from hooktrainer.run.inference import Sampling, answer_heldout, answer_texts

    length: int | None = args.max_response_length
    sampling = Sampling(n=args.n, temperature=args.temperature, max_response_length=length, seed=args.seed)
    if texts is not None:
        return answer_texts(trained_model(args), texts, sampling)
    args.config = args.task
    composition = load(args)
    return answer_heldout(trained_model(args), composition, args.size, sampling)


def _texts(prompts: Sequence[str] | None) -> Sequence[str]:
    """Return the given prompts, or the lines of the input."""
    if prompts is None:
        prompts = _lines_of_input()
    for number, prompt in enumerate(prompts, start=1):
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise ConfigError(f"prompt {number} is not UTF-8: {prompt!r}")
    return prompts


def _lines_of_input() -> Sequence[str]:
    if sys.stdin.isatty():
        raise ConfigError("no prompt was given: use --prompt TEXT or --task CONFIG, or write one a line to the input")
    try:
        lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompts on the input are not UTF-8: {error}") from None
    if not lines:
        raise ConfigError("the input has no prompts: write one a line, or use --prompt TEXT or --task CONFIG")
    return lines


def _plain(prompt: Prompt, answer: Trajectory, *, scored: bool) -> str:
    cut = " (cut off)" if answer.truncated else ""
    score = f"score: {answer.score:g}\n" if scored else ""
    return f"prompt: {prompt.text}\nanswer: {answer.text}{cut}\n{score}\n"


def _json(prompt: Prompt, answer: Trajectory, *, scored: bool) -> str:
    found: dict[str, Any] = {
        "prompt": prompt.example.prompt,
        "answer": answer.text,
        "tokens": answer.length,
        "truncated": answer.truncated,
    }
    if scored:
        found |= {"score": answer.score, "exact": answer.exact}
    return json.dumps(found, ensure_ascii=False) + "\n"


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {number}")
    return number


def _temperature(text: str) -> float:
    if not math.isfinite(number := float(text)) or number < 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text}")
    return number
