"""Answers of a trained model, sampled by the rollout engine that training samples from."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.huggingface_options import HuggingFaceOptions
from hooktrainer.ports import Answer, Example, Prompt, Tokenizer, Trajectory, validation_metrics
from hooktrainer.rollout.engine import make_parts
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.inline import InlineEngine, InlineOptions
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.run.build import set_up_libraries
from hooktrainer.run.limits import prompt_length
from hooktrainer.run.trained import RestoredModel, Trained
from hooktrainer.tasks.prompts import PromptLimit, TaskPrompts

if TYPE_CHECKING:
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.run.composition import Composition

DEFAULT_RESPONSE_LENGTH: Final = 256
"""Largest number of tokens of an answer, where no run limits it."""


class Unscored:
    """A task without data, for prompts whose answers are not scored."""

    size = None

    def train(self, seed: int) -> Iterable[Example]:  # noqa: ARG002 (as in `Task`)
        """Return no examples."""
        return ()

    def heldout(self, size: int) -> Sequence[Example]:  # noqa: ARG002 (as in `Task`)
        """Return no examples."""
        return ()

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:  # noqa: ARG002 (as in `Task`)
        """Return 0 for every answer."""
        return [0.0 for _ in answers]


@attrs.frozen(kw_only=True)
class Sampling:
    """How prompts are answered."""

    n: int = 1
    """Answers to each prompt."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    max_response_length: int | None = None
    """Largest number of tokens of an answer; that of the run if None."""
    seed: int = 0


def answer_texts(trained: Trained, texts: Sequence[str], sampling: Sampling) -> list[tuple[Prompt, Trajectory]]:
    """Return the answers to each text, which are not scored. Raises `ConfigError` for a text that cannot be used."""
    tokenizer = trained.model.tokenizer(trained.task or Unscored())
    prompts = []
    for number, text in enumerate(texts, start=1):
        try:
            prompt = Prompt(Example(text, number=number - 1), tokenizer.encode(text))
        except ConfigError as error:
            raise ConfigError(f"prompt {number}: {error}") from None
        if not len(prompt.tokens):
            raise ConfigError(f"prompt {number}, {text!r}, has no tokens")
        prompts.append(prompt)
    return _answers(trained, prompts, sampling, InlineOptions(), tokenizer=tokenizer, task=Unscored())


def answer_heldout(
    trained: Trained, composition: Composition, size: int, sampling: Sampling
) -> list[tuple[Prompt, Trajectory]]:
    """Return scored answers to the first held-out prompts of a task."""
    tokenizer = trained.model.tokenizer(composition.task)
    prompts = _heldout(trained, composition, tokenizer, size)
    if sampling.max_response_length is None:
        sampling = attrs.evolve(sampling, max_response_length=composition.rollout.max_response_length)
    parts = {"tokenizer": tokenizer, "task": composition.task, "reward": composition.config.reward}
    return _answers(trained, prompts, sampling, _inline(composition.rollout), **parts)


def validation_figures(trained: Trained, composition: Composition) -> Mapping[str, float | None]:
    """Return the figures that the validation of a configuration reports for a trained model, by name in the row."""
    set_up_libraries(composition.config)
    model, task, rollout = _as_configured(trained.model, composition.model), composition.task, composition.rollout
    trained = attrs.evolve(trained, model=model)
    tokenizer = model.tokenizer(task)
    prompts = _heldout(trained, composition, tokenizer, size := _validated(composition))
    if len(prompts) < size:
        text = f"size is {size}, and the task has {len(prompts)} held-out prompts; lower `size` of the validation"
        raise ConfigError([Fault("plugins", text)])
    config = composition.config
    parts = {"tokenizer": tokenizer, "task": task, "reward": config.reward, "seed": config.seed}
    longest = _prompt_length(trained, composition) + rollout.max_response_length
    with _generator(model, _inline(rollout), max_length=longest, **parts) as generator:
        metrics = validation_metrics(prompts, generator.greedy(prompts))
    return {name: metric.value for name, metric in metrics.items()}


def _answers(
    trained: Trained, prompts: Sequence[Prompt], sampling: Sampling, options: InlineOptions, **parts: Any
) -> list[tuple[Prompt, Trajectory]]:
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    length = sampling.max_response_length or trained.max_response_length or DEFAULT_RESPONSE_LENGTH
    most = getattr(trained.model, "max_length", None)
    if sampling.max_response_length is None and trained.max_response_length is None and most is not None:
        length = max(1, min(length, most - len(longest.tokens)))
    if most is not None and len(longest.tokens) + length > most:
        found = f"the prompt {reprlib.repr(longest.text)} of {len(longest.tokens)} tokens and an answer of {length}"
        raise ConfigError(
            f"{found} exceed the {most} tokens that the model in {trained.place} was trained for. Shorten the prompt, "
            "or lower --max-response-length"
        )
    temperature = sampling.temperature or 1.0
    options = attrs.evolve(options, n=sampling.n, temperature=temperature, max_response_length=length)
    most = len(longest.tokens) + length
    with _generator(trained.model, options, max_length=most, seed=sampling.seed, **parts) as generator:
        if not sampling.temperature:
            return list(zip(prompts, generator.greedy(prompts), strict=True))
        answers = zip(prompts, generator.sampled(prompts), strict=True)
        return [(prompt, answer) for prompt, group in answers for answer in group]


def _inline(options: SamplingOptions) -> InlineOptions:
    """Return options that sample in the same way on the calling thread."""
    return InlineOptions(**{field.name: getattr(options, field.name) for field in attrs.fields(SamplingOptions)})


@contextmanager
def _generator(model: Any, options: InlineOptions, **parts: Any) -> Iterator[Generator]:
    """Yield a generator whose published weights are those that `model` loads. `parts` is the rest of its config."""
    from hooktrainer.models.policy import full_state
    from hooktrainer.models.precision import in_single_precision
    from hooktrainer.models.vocabulary import check_vocabulary

    size = parts["tokenizer"].vocab_size
    build = partial(model.build, vocab_size=size, max_length=parts["max_length"], seed=parts["seed"])
    generator, weights = make_parts(options, GeneratorConfig(policy=partial(in_single_precision, build), **parts))
    engine = InlineEngine(generator, weights)
    try:
        engine.stage(full_state(engine.module), 0)  # both sets of weights were loaded, but none is published
        engine.flip()
        check_vocabulary(engine.module, size)
        yield generator
    finally:
        engine.close()


def _heldout(trained: Trained, composition: Composition, tokenizer: Tokenizer, size: int) -> Sequence[Prompt]:
    limit = PromptLimit(_prompt_length(trained, composition), composition.rollout.overlong_prompts)
    prompts = TaskPrompts(composition.task, tokenizer, seed=composition.config.seed, limit=limit).heldout(size)
    if not prompts:
        raise ConfigError([Fault("task", "it has no held-out prompt that is short enough")])
    return prompts


def _prompt_length(trained: Trained, composition: Composition) -> int:
    model = trained.model.options if isinstance(trained.model, RestoredModel) else trained.model
    return prompt_length(composition.rollout, model, composition.task)


def _as_configured(model: Any, configured: Any) -> Any:
    """Return a model of Hugging Face with the options of a configuration, such as its precision and template."""
    if isinstance(model, HuggingFaceOptions) and isinstance(configured, HuggingFaceOptions):
        return attrs.evolve(configured, path=model.path, lora=None)
    return model


def _validated(composition: Composition) -> int:
    """Return the number of prompts of the first plugin that validates."""
    for placed in composition.plan.plugins:
        size = getattr(placed.plugin, "size", None)
        if "val/score/mean" in (placed.plugin.adds_metrics or ()) and isinstance(size, int):
            return size
    text = "no plugin validates. Add `validation`, whose `size` is the number of held-out prompts"
    raise ConfigError([Fault("plugins", text)])
