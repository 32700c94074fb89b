"""The shipped run of a Hugging Face model learns its task, and leaves a folder that transformers loads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import make_tiny_llama
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hooktrainer import load_config
from hooktrainer.cli import main
from hooktrainer.run.composition import composition_of

CONFIG = Path(__file__).parents[2] / "configs" / "huggingface.yaml"
FOLDER = "runs/tiny_llama"
QUESTIONS = [example.text for example in make_tiny_llama.TASK.heldout(32)]


def greedy_answers_of_transformers(folder: Path) -> list[str]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    answers = []
    for question in QUESTIONS:
        inputs = tokenizer(question, return_tensors="pt", return_token_type_ids=False)
        tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(tokens, skip_special_tokens=True))
    return answers


def exact_matches(capsys: pytest.CaptureFixture[str], model: str) -> float:
    capsys.readouterr()
    assert main(["evaluate", model, str(CONFIG), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["val/exact_match/mean"]


def test_the_model_is_made_with_the_task_of_the_run() -> None:
    assert composition_of(load_config(CONFIG)).task == make_tiny_llama.TASK


@pytest.mark.slow
def test_transformers_and_generate_give_the_same_greedy_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_llama.main([FOLDER])
    assert main(["fit", str(CONFIG), "trainer.total_steps=3"]) == 0
    capsys.readouterr()
    prompts = [part for question in QUESTIONS for part in ("--prompt", question)]

    assert main(["generate", "runs/huggingface", *prompts, "--json"]) == 0

    answers = [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]
    assert answers == greedy_answers_of_transformers(Path("runs/huggingface/model"))
    assert len(set(answers)) > 16


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
def test_reinforcement_learning_adds_most_of_the_exact_answers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_llama.main([FOLDER, "--seed", str(seed)])
    before = exact_matches(capsys, FOLDER)
    started = time.perf_counter()

    assert main(["fit", str(CONFIG), f"seed={seed}"]) == 0

    seconds = time.perf_counter() - started
    after = exact_matches(capsys, "runs/huggingface")
    with capsys.disabled():
        print(f"seed {seed}: exact answers {before:.3f} -> {after:.3f} in {seconds:.0f} s")
    assert before <= 0.4
    assert after >= 0.7
    assert after - before >= 0.3
