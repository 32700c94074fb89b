"""`hooktrainer generate` and `hooktrainer evaluate`, on models that small runs left."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers.huggingface_models import save_model
from hooktrainer import build_trainer, load_config
from hooktrainer.cli import main

PLUGINS = """
plugins:
  - metric_aggregation
  - weight_sync
  - {use: validation, every: 2, size: 16}
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: checkpoint, every: 2}
  - export
"""
TRAINER = "trainer: {total_steps: 3, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}\n"
DECODER = f"""
task: {{use: sort_digits, digits: 3}}
model: {{use: decoder, layers: 1, width: 16, heads: 2}}
rollout: {{use: thread, n: 4, max_response_length: 4}}
optim: {{lr: 1e-3}}
{TRAINER}{PLUGINS}"""
LANGUAGE = f"""
task: {{use: sort_digits, digits: 3}}
model: {{use: huggingface, path: source, chat_template: CHAT, lora: {{rank: 2, targets: [q_proj, v_proj]}}}}
rollout: {{use: inline, n: 4, max_prompt_length: 20, max_response_length: 6}}
optim: {{lr: 1e-2}}
{TRAINER}{PLUGINS}"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs of a decoder, and of language models with and without a chat template."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_model(folder / "source", chat=True)
        (folder / "decoder.yaml").write_text(DECODER)
        for chat in ("auto", "none"):
            (folder / f"{chat}.yaml").write_text(LANGUAGE.replace("CHAT", chat))
        for task in ("reverse", "addition"):
            (folder / f"{task}.yaml").write_text(DECODER.replace("sort_digits, digits: 3", task))
        for name in ("decoder", "auto", "none"):
            build_trainer(load_config(f"{name}.yaml")).fit()
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


@pytest.fixture
def without_export(trained: Path) -> Iterator[str]:
    """Yield a copy of a run without its exported model."""
    shutil.copytree(trained / "runs/decoder", trained / "runs/copy")
    shutil.rmtree(trained / "runs/copy/model")
    yield "runs/copy"
    shutil.rmtree(trained / "runs/copy")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def fault(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def last_row(run: str) -> dict[str, float]:
    return json.loads(Path(run, "metrics.jsonl").read_text().splitlines()[-1])


class TestEvaluate:
    @pytest.mark.parametrize("name", ["decoder", "auto", "none"])
    def test_figures_of_a_run_equal_those_of_its_last_row(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        for model in (f"runs/{name}", f"runs/{name}/model"):
            figures = json.loads(output(capsys, "evaluate", model, f"{name}.yaml", "--json"))
            assert figures == {key: value for key, value in last_row(f"runs/{name}").items() if key.startswith("val/")}
            assert figures["val/response_length/mean"] > 0

    def test_checkpoint_has_the_same_figures_and_is_named(
        self, without_export: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        expected = output(capsys, "evaluate", "runs/decoder", "decoder.yaml")
        assert main(["evaluate", without_export, "decoder.yaml"]) == 0
        out, err = capsys.readouterr()

        assert out == expected
        assert err == "there is no exported model; using the checkpoint runs/copy/checkpoints/step_00000003\n"

    def test_checkpoint_with_adapters_has_the_figures_of_the_run(
        self, trained: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (trained / "runs/auto/model").rename(trained / "moved")
        try:
            figures = json.loads(output(capsys, "evaluate", "runs/auto", "auto.yaml", "--json"))
        finally:
            (trained / "moved").rename(trained / "runs/auto/model")
        assert figures.items() <= last_row("runs/auto").items()

    def test_overrides_change_the_held_out_prompts(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("evaluate", "runs/decoder", "decoder.yaml", "--json", "plugins.validation.size=8")
        figures = json.loads(output(capsys, *arguments))

        assert list(figures) == ["val/score/mean", "val/exact_match/mean", "val/response_length/mean"]
        assert main(["evaluate", "runs/decoder", "decoder.yaml", "rollout.max_response_length=1"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "val/response_length/mean: 1.0"

    def test_mixture_has_the_score_of_each_task(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        two = "[{use: sort_digits, name: a, digits: 2}, {use: sort_digits, name: b, digits: 3}]"
        text = LANGUAGE.replace("CHAT", "auto").replace("sort_digits, digits: 3", f"mixture, tasks: {two}")
        (tmp_path / "two.yaml").write_text(text)
        figures = json.loads(output(capsys, "evaluate", "runs/auto", str(tmp_path / "two.yaml"), "--json"))

        assert {"val/score/a/mean", "val/score/b/mean"} < figures.keys()

    def test_configuration_without_validation_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        err = fault(capsys, "evaluate", "runs/decoder", "decoder.yaml", "plugins=[weight_sync]")
        assert "plugins: no plugin validates. Add `validation`, whose `size`" in err

    def test_more_prompts_than_the_task_has_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        err = fault(capsys, "evaluate", "runs/decoder", "decoder.yaml", "plugins.validation.size=999999")
        assert "size is 999999, and the task has " in err

    @pytest.mark.parametrize("task", ["reverse", "addition"])
    def test_task_with_another_alphabet_is_refused(self, task: str, capsys: pytest.CaptureFixture[str]) -> None:
        err = fault(capsys, "evaluate", "runs/decoder", f"{task}.yaml")
        assert "has the alphabet '0123456789>', without" in err

    def test_longer_prompts_than_the_model_was_trained_for_are_refused(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        err = fault(capsys, "evaluate", "runs/decoder", "decoder.yaml", "task.digits=9")
        assert "have up to 14 tokens, and the decoder in runs/decoder/model was trained for 8. Lower" in err

    def test_faults_of_the_configuration_are_named_with_their_address(self, capsys: pytest.CaptureFixture[str]) -> None:
        err = fault(capsys, "evaluate", "runs/decoder", "decoder.yaml", "plugins.validation.evry=2")
        assert "plugins[2].evry (validation; override plugins.validation.evry=2): unknown key 'evry'" in err


class TestGenerate:
    @pytest.mark.parametrize("name", ["auto", "none"])
    def test_greedy_answers_equal_those_of_transformers(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        texts = ["312>", "sort these: 9 1 4>", "0>"]
        prompts = [part for text in texts for part in ("--prompt", text)]
        answers = objects(output(capsys, "generate", f"runs/{name}", *prompts, "--json"))

        folder = f"runs/{name}/model"
        model, words = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        assert [answer["prompt"] for answer in answers] == texts
        for text, answer in zip(texts, answers, strict=True):
            if name == "auto":
                chat = [{"role": "user", "content": text}]
                full = words.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
                ids = torch.tensor([words.encode(full, add_special_tokens=False)])
            else:
                ids = torch.tensor([words.encode(text)])
            expected = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0
            )
            assert words.decode(expected[0, ids.shape[1] :], skip_special_tokens=True) == answer["answer"]
            assert answer["tokens"] == expected.shape[1] - ids.shape[1]

    def test_prompt_and_answer_are_printed_plainly(self, capsys: pytest.CaptureFixture[str]) -> None:
        answers = objects(output(capsys, "generate", "runs/decoder", "--prompt", "312>", "--prompt", "998>", "--json"))
        printed = output(capsys, "generate", "runs/decoder", "--prompt", "312>", "--prompt", "998>")

        cut = [" (cut off)" if answer["truncated"] else "" for answer in answers]
        expected = [f"prompt: {a['prompt']}\nanswer: {a['answer']}{c}\n\n" for a, c in zip(answers, cut, strict=True)]
        assert printed == "".join(expected)

    def test_checkpoint_gives_the_answers_of_the_exported_model(
        self, without_export: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = output(capsys, "generate", "runs/decoder", "--prompt", "312>")

        assert output(capsys, "generate", without_export, "--prompt", "312>") == first
        assert output(capsys, "generate", f"{without_export}/checkpoints/step_00000003", "--prompt", "312>") == first

    def test_prompts_are_lines_of_the_input(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("312>\n\n998>\r\n"))
        answers = objects(output(capsys, "generate", "runs/decoder", "--json"))

        assert [answer["prompt"] for answer in answers] == ["312>", "998>"]

    def test_sampled_answers_repeat_with_the_seed(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["generate", "runs/decoder", "--prompt", "312>", "-n", "8", "--temperature", "1.5"]
        first, again, other = (output(capsys, *arguments, "--seed", seed) for seed in ("1", "1", "2"))

        assert first == again != other
        assert first.count("answer: ") == 8
        assert len(set(first.splitlines())) > 3

    def test_held_out_prompts_of_a_task_are_scored(self, capsys: pytest.CaptureFixture[str]) -> None:
        config = ("--task", "decoder.yaml")
        answers = objects(output(capsys, "generate", "runs/decoder", *config, "--size", "16", "--json"))

        assert sum(answer["score"] for answer in answers) / 16 == last_row("runs/decoder")["val/score/mean"]
        assert "score: " in output(capsys, "generate", "runs/decoder", *config, "task.digits=2")

    def test_length_of_answers_is_that_of_the_run_or_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        prompt = ("--prompt", "312>", "--json")
        (answer,) = objects(output(capsys, "generate", "runs/auto", *prompt))
        (shorter,) = objects(output(capsys, "generate", "runs/auto", *prompt, "--max-response-length", "2"))
        (longer,) = objects(output(capsys, "generate", "runs/auto", *prompt, "--max-response-length", "12"))

        assert shorter["tokens"] == 2 < answer["tokens"] <= 6 <= longer["tokens"]

    def test_folder_outside_of_a_run_is_a_model(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copytree("runs/decoder/model", tmp_path / "mine")
        (answer,) = objects(output(capsys, "generate", str(tmp_path / "mine"), "--prompt", "312>", "--json"))

        assert answer["tokens"] <= 4


class TestFaults:
    @pytest.mark.parametrize("command", ["generate", "evaluate"])
    def test_missing_folder_is_named_with_a_suggestion(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        rest = ["--prompt", "1>"] if command == "generate" else ["decoder.yaml"]
        err = fault(capsys, command, "runs/decodr", *rest)
        assert "runs/decodr does not exist; expected a run directory such as runs/NAME, or the folder of a mo" in err
        assert "Did you mean 'decoder'?" in err
        assert "decoder.yaml is a file" in fault(capsys, command, "decoder.yaml", *rest)

    def test_prompt_that_is_not_utf_8_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        err = fault(capsys, "generate", "runs/decoder", "--prompt", "1>", "--prompt", os.fsdecode(b"1\xff"))
        assert "prompt 2 is not UTF-8: '1\\udcff'" in err

    def test_run_without_a_complete_step_has_no_model(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "config.yaml").write_text(DECODER)
        err = fault(capsys, "generate", str(tmp_path), "--prompt", "1>")
        assert "has no model: no step was completed, or it had neither of the plugins `export` and `checkpoint`" in err

    def test_folder_without_a_model_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "has no config.json" in fault(capsys, "generate", str(tmp_path), "--prompt", "1>")
        (tmp_path / "config.json").write_text("{")
        assert "config.json cannot be read" in fault(capsys, "generate", str(tmp_path), "--prompt", "1>")
        (tmp_path / "config.json").write_text("{}")
        assert "neither a `format` of hooktrainer nor a `model_type`" in fault(
            capsys, "generate", str(tmp_path), "--prompt", "1>"
        )
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        assert "cannot be loaded" in fault(capsys, "generate", str(tmp_path), "--prompt", "1>")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--prompt", "31x>"], "prompt 1: 'x' in '31x>' is not in the alphabet '0123456789>'"),
            (["--prompt", "1>", "--prompt", "é"], "prompt 2: 'é' in 'é' is not in the alphabet"),
            (["--prompt", ""], "prompt 1, '', has no tokens"),
            (["--prompt", "1234567>"], "the prompt '1234567>' of 8 tokens and an answer of 4 exceed the 8 tokens"),
            (["--prompt", "1>", "--max-response-length", "7"], "an answer of 7 exceed the 8 tokens"),
            (["--prompt", "1>", "-n", "2"], "-n 2 greedy answers would all be equal; sample them with --temperature"),
            (["--task", "decoder.yaml", "task.digits=0"], "task.digits (override task.digits=0)"),
            (["--task", "reverse.yaml"], "has the alphabet '0123456789>', without"),
        ],
    )
    def test_unusable_prompt_is_named_with_the_remedy(
        self, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert text in fault(capsys, "generate", "runs/decoder", *arguments)

    def test_prompt_longer_than_the_positions_of_a_language_model_is_refused(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        err = fault(capsys, "generate", "runs/auto", "--prompt", "1 " * 100)
        assert "and the model 'runs/auto/model' has 64 positions" in err

    @pytest.mark.parametrize(
        "arguments", [["-n", "0"], ["--temperature", "-1"], ["--temperature", "nan"], ["--max-response-length", "x"]]
    )
    def test_invalid_number_is_a_usage_error(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            main(["generate", "runs/decoder", "--prompt", "1>", *arguments])
        assert exit_.value.code == 2
        assert f"argument {arguments[0]}" in capsys.readouterr().err

    def test_empty_input_has_no_prompts(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        assert "the input has no prompts: write one a line, or use" in fault(capsys, "generate", "runs/decoder")

    def test_terminal_is_not_read(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr("sys.stdin", Terminal("1>\n"))
        assert "no prompt was given: use --prompt TEXT or --task CONFIG" in fault(capsys, "generate", "runs/decoder")

    def test_changed_weights_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copytree("runs/decoder/model", tmp_path / "model")
        (tmp_path / "model/model.safetensors").write_bytes(b"\0" * 64)
        err = fault(capsys, "generate", str(tmp_path / "model"), "--prompt", "1>")
        assert "model.safetensors cannot be read" in err
