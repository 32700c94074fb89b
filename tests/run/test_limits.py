"""Sizes that no machine holds are refused while the configuration is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.fault_texts import without_sources
from hooktrainer._util.machine import memory_limit, thread_limit
from hooktrainer.cli import main

CONFIGS = Path(__file__).parents[2] / "configs"
QUICKSTART = str(CONFIGS / "quickstart.yaml")
PROCESS = str(CONFIGS / "process.yaml")

TOO_LARGE = {
    "task.size": 10**12,
    "task.digits": 10**6,
    "model.layers": 10**9,
    "model.width": 10**9 * 4,
    "model.mlp_ratio": 10**9,
    "algorithm.ppo_epochs": 10**9,
    "rollout.max_response_length": 10**9,
    "rollout.slots": 10**9,
    "rollout.workers": 10**6,
    "rollout.n": 10**9,
    "trainer.num_warmup_batches": 10**9,
    "plugins.validation.size": 10**9,
    "plugins.weight_sync.bucket_mb": 10**300,
}


@pytest.mark.parametrize("option", TOO_LARGE)
@pytest.mark.parametrize("config", [QUICKSTART, PROCESS], ids=["thread", "process"])
def test_a_size_beyond_the_machine_is_refused_at_its_address(
    config: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [f"{option}={TOO_LARGE[option]}", "plugins.staleness.max_off_policy_threshold=10000000000"]
    assert main(["plan", config, *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    err = without_sources(err)
    plugins = {"plugins.weight_sync": "plugins[1]", "plugins.validation": "plugins[3]"}
    section, _, key = option.rpartition(".")
    (line,) = [line for line in err.splitlines()[1:] if line.startswith(f"  {plugins.get(section, section)}.{key}: ")]
    assert str(TOO_LARGE[option]) in line or "1e+300" in line
    assert len(err) < 2000


@pytest.mark.parametrize(
    ("overrides", "address"),
    [
        (["trainer.train_batch_size=4000000000", "trainer.ppo_mini_batch_size=1000000000"], "ppo_mini_batch_size"),
        (["trainer.train_batch_size=16000000000", "trainer.parameter_sync_step=1000000000"], "parameter_sync_step"),
        (["model.width=1000000000"], "model.width"),
        (["model.width=1000000000", "model.heads=1000000000", "model.layers=1"], "model.width"),
        (["model.width=1000000000", "model.positions=rotary", "model.tied=true"], "model.width"),
        (["task.digits=1000000", "rollout={batching: group, use: inline, n: 2}"], "task.digits"),
        (["task.use=addition", "task.digits=1000000"], "task.digits"),
        (["rollout.n=1000000", "optim.micro_batch_size=1000000000"], "rollout.n"),
    ],
)
def test_sizes_that_multiply_are_refused_at_the_largest(
    overrides: list[str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", QUICKSTART, *overrides]) == 2
    assert re.search(f"{address}: .*1000000", without_sources(capsys.readouterr().err))


def test_an_estimate_names_what_is_required_and_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, "rollout.slots=1000000000"]) == 2
    line = without_sources(capsys.readouterr().err).splitlines()[1]
    assert line.startswith("  rollout.slots: 1000000000 requires at least 31.43 TiB of memory (31.43 TiB for key-value")
    assert line.endswith(f"this process may use {memory_limit() / 2**30:.4g} GiB")


def test_threads_of_worker_processes_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", PROCESS, "rollout.intra_op_threads=1000000000"]) == 2
    assert "rollout.intra_op_threads: " in without_sources(capsys.readouterr().err)


def test_a_number_of_a_thousand_digits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("model.width", "algorithm.ppo_epochs", "rollout.workers", "rollout.max_response_length"):
        assert main(["plan", QUICKSTART, f"{option}=4{'0' * 1000}"]) == 2
        err = without_sources(capsys.readouterr().err)
        assert f"  {option}: expected int, found '4000" in err
        assert len(err) < 1000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("longest_prompt = '7'", "task: its longest_prompt is '7', expected a number of tokens of at least 1"),
        ("longest_prompt = 0", "task: its longest_prompt is 0, expected a number of tokens of at least 1"),
        ("alphabet = ['0', '1']", "task: its alphabet is of type list, expected a text of characters"),
        ("alphabet = ''", "task: its alphabet is empty, expected the characters of prompts and answers"),
        ("alphabet = '0121>'", "task: its alphabet has '1' twice; each has one token"),
        ("alphabet = '00112345>'", "task: its alphabet has '0', '1' twice; each has one token"),
        ("alphabet = '012\\n\\n'", "task: its alphabet has '\\n' twice; each has one token"),
        ("longest_prompt = True", "task: its longest_prompt is True, expected a number of tokens of at least 1"),
        ("longest_prompt = False", "task: its longest_prompt is False, expected a number of tokens of at least 1"),
        ("longest_prompt = 7.0", "task: its longest_prompt is 7.0, expected a number of tokens of at least 1"),
        ("longest_prompt = None", "task: its longest_prompt is None, expected a number of tokens of at least 1"),
    ],
)
def test_properties_of_a_task_of_the_wrong_type_are_refused(
    tmp_path: Path, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(
        "import attrs\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n"
        f"@attrs.frozen(kw_only=True)\nclass Odd(SortDigits):\n    {body}\n"
    )
    assert main(["plan", QUICKSTART, f"task.use={tmp_path}/odd.py:Odd"]) == 2
    assert without_sources(capsys.readouterr().err).splitlines()[1:] == [f"  {message}"]


def test_a_long_run_is_no_fault() -> None:
    assert main(["plan", QUICKSTART, "trainer.total_steps=1000000000", "trainer.total_epochs=1000000000"]) == 0


def test_sizes_are_refused_without_torch() -> None:
    code = "import sys; from hooktrainer.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", QUICKSTART, "model.layers=1000000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "2 False\n"


def test_limits_are_the_lowest_of_the_groups_that_contain_the_process(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/old/inner\n8:pids:/\n0::/new/inner\n",
        "proc/sys/kernel/threads-max": "5000",
        "sys/fs/cgroup/memory/old/memory.limit_in_bytes": "9000",
        "sys/fs/cgroup/new/memory.max": "8000",
        "sys/fs/cgroup/new/inner/memory.max": "max",
        "sys/fs/cgroup/pids/pids.max": "70",
        "sys/fs/cgroup/new/inner/pids.max": "60",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == 8000
    assert thread_limit(tmp_path) == 60
    assert memory_limit(tmp_path / "nothing") > 2**20


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "override",
    [
        f"plugins.log_after_collect.sinks=[{LONG}]",
        f"plugins.log_after_collect.sinks=[{', '.join(['jsonl'] * 20_000)}]",
        f"task.{LONG}=1",
        f"task.digits={LONG}",
        f"model.use={LONG}",
        f"algorithm.adv_estimator={LONG}",
        f"algorithm.adv_args={{{LONG}: 1}}",
        f"plugins.validation.every={LONG}",
        f"run.name={LONG}/x",
    ],
    ids=lambda override: override[:30],
)
def test_a_message_about_a_long_value_stays_short(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QUICKSTART, override]) == 2
    assert len(capsys.readouterr().err) < 20_000


def test_an_error_of_a_model_that_estimates_its_size_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(
        "import attrs\nfrom hooktrainer.models.options import DecoderOptions\n\n"
        "@attrs.frozen(kw_only=True)\nclass Odd(DecoderOptions):\n"
        "    def size(self, *, vocab_size, max_length):\n        return self.sizes\n"
    )
    assert main(["plan", QUICKSTART, f"model.use={tmp_path}/odd.py:Odd"]) == 2
    assert "AttributeError: 'Odd' object has no attribute 'sizes'" in capsys.readouterr().err
