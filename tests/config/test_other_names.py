"""Keys of verl and TRL are refused with the option that means the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.option_paths import exists
from hooktrainer import load_config
from hooktrainer.config.fields import init_fields, option_name
from hooktrainer.config.other_names import ABSENT, OPTIONS
from hooktrainer.config.sections import Config, section_classes
from hooktrainer.errors import ConfigError

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
HUGGINGFACE = QUICKSTART.with_name("huggingface.yaml")


def message_of(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, overrides=[override])
    (fault,) = caught.value.faults
    return fault.message


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("learning_rate=1e-6", "optim.lr"),
        ("optim.learning_rate=1e-6", "optim.lr"),
        ("trainer.ppo_micro_batch_size_per_gpu=4", "optim.micro_batch_size"),
        ("rollout.num_generations=8", "rollout.n"),
        ("trainer.save_freq=5", "plugins.checkpoint.every"),
        ("plugins.checkpoint.save_steps=5", "plugins.checkpoint.every"),
        ("trainer.test_freq=5", "plugins.validation.every"),
        ("trainer.max_steps=5", "trainer.total_steps"),
        ("trainer.num_train_epochs=5", "trainer.total_epochs"),
        ("rollout.max_completion_length=5", "rollout.max_response_length"),
        ("algorithm.beta=0.1", "algorithm.kl_coeff"),
        ("algorithm.epsilon=0.2", "algorithm.clip_ratio_low"),
        ("optim.beta=0.9", "beta2"),
        ("algorithm.use_kl_in_reward=true", "algorithm.kl_in"),
    ],
)
def test_a_key_of_verl_or_trl_is_refused_with_the_option_that_means_the_same(override: str, path: str) -> None:
    assert message_of(override).endswith(f"Did you mean '{path}'?")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("lora.r", "model.lora.rank"),
        ("r", "model.lora.rank"),
        ("lora_r", "model.lora.rank"),
        ("lora_rank", "model.lora.rank"),
        ("lora_alpha", "model.lora.alpha"),
        ("lora.lora_alpha", "model.lora.alpha"),
        ("target_modules", "model.lora.targets"),
        ("lora.target_modules", "model.lora.targets"),
        ("lora_target_modules", "model.lora.targets"),
    ],
)
def test_a_key_of_peft_is_refused_with_the_option_of_the_adapters(key: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(HUGGINGFACE, overrides=[f"model.{key}=4"])
    (fault,) = (fault for fault in caught.value.faults if "unknown key" in fault.message)
    assert fault.message.endswith(f"Did you mean '{path}'?")
    load_config(HUGGINGFACE, overrides=[f"{path}={'[q_proj]' if path.endswith('targets') else 4}"])


@pytest.mark.parametrize("key", ["rollout.tensor_model_parallel_size", "trainer.nnodes", "critic.use_vllm"])
def test_a_key_of_something_that_does_not_exist_here_is_refused_with_a_statement_of_it(key: str) -> None:
    text = message_of(f"{key}=2")
    assert text.endswith(ABSENT[key.rpartition(".")[2]])
    assert "Did you mean" not in text


def test_every_suggested_option_exists_and_no_option_has_one_of_the_other_names() -> None:
    assert [path for path in OPTIONS.values() if not exists(path)] == []
    options = {option_name(field) for cls in (Config, *section_classes().values()) for field in init_fields(cls)}
    assert options.isdisjoint(OPTIONS.keys() | ABSENT.keys())
    assert OPTIONS.keys().isdisjoint(ABSENT)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("actor_rollout_ref.rollout.n=4", "Its options are in 'model', 'rollout', 'algorithm', 'optim' and 'trainer'."),
        ("data.train_files=x.parquet", "Files and columns are options of 'task', lengths of 'rollout'"),
        ("custom_reward_function.path=mine.py", "Rewards are functions in 'task.rewards'."),
        ("reward_model.enable=true", "There are no reward models."),
    ],
)
def test_a_section_of_verl_is_refused_with_the_sections_that_hold_its_options(override: str, hint: str) -> None:
    assert hint in message_of(override)
