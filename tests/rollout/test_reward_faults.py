"""Runs with reward functions that hang, raise or return no score: the group fails by the name of the function."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.subprocess_runs import FIT, SubprocessRun
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import RolloutError

RUN = """
task: {use: dataset, path: data.jsonl, prompt: prompt, truth: answer, rewards: [{use: "rewards.py:judge"}]}
model: {use: huggingface, path: my_model}
rollout: {use: ENGINE, n: 2, max_response_length: 2, max_prompt_length: 20}
trainer: {total_steps: 3, train_batch_size: 4, ppo_mini_batch_size: 4}
plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [jsonl]}]
"""
PROCESS = pytest.param("process, workers: 1", marks=pytest.mark.slow)
ENGINES = ["inline", "thread", PROCESS]
HANGS_ONCE = """
import asyncio, pathlib, time

HUNG, RELEASED = (pathlib.Path(__file__).with_name(name) for name in ("hung", "released"))

def is_first():
    try:
        HUNG.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def judge(answer, truth):
    hangs = is_first()
    while hangs and not RELEASED.exists():
        time.sleep(0.05)
    return 0.5

async def judge_later(answer, truth):
    if is_first():
        await asyncio.Event().wait()
    return 0.5

def judge_all(prompts, completions, **columns):
    hangs = is_first()
    while hangs and not RELEASED.exists():
        time.sleep(0.05)
    return [0.5] * len(prompts)
"""
Start = Callable[..., object]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that writes a run with these reward functions, and returns its configuration."""
    from helpers.huggingface_models import save_model

    monkeypatch.chdir(tmp_path)
    save_model(Path("my_model"))
    lines = [{"prompt": f"prompt {number}", "answer": str(number)} for number in range(16)]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def written(engine: str, rewards: str, *overrides: str) -> object:
        Path("rewards.py").write_text(rewards)
        Path("run.yaml").write_text(RUN.replace("ENGINE", engine))
        return load_config("run.yaml", overrides=overrides)

    yield written
    Path("released").touch()


def named(reward: str, answers: str = r"the answer '.*' to 'prompt \d+'") -> str:
    return rf"the reward '{reward}' of {answers} did not return within reward\.timeout_s = 0\.5 s"


LATE = (
    r"Dataset\.score of the 2 answers to 'prompt \d+' \(the first is '.*'\) did not return within "
    r"reward\.timeout_s = 0\.5 s; the reward 'judge_later' of the answer '.*' to 'prompt \d+' was cancelled"
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("reward", "found"),
    [
        ("judge", rf"{named('judge')}; it is in .*judge \(.*rewards\.py, line \d+\)"),
        ("judge_later", LATE),
        ("judge_all", named("judge_all", r"the 2 answers to 'prompt \d+' \(the first is '.*'\)")),
    ],
)
def test_a_group_whose_reward_hangs_fails_by_name_and_is_replaced(
    reward: str, found: str, engine: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    config = start(engine, HANGS_ONCE, "reward.timeout_s=0.5", f"task.rewards.0.use=rewards.py:{reward}")
    trainer = build_trainer(config)

    assert trainer.fit().step == 3
    assert re.search(rf"group \d+ .*could not be generated \(timeout\) and is replaced: .*{found}", caplog.text)
    assert trainer.ports.buffer.ledger.sampled.groups == 12
    assert trainer.ports.buffer.ledger.dropped["failed"].groups == 1
    assert trainer.ports.buffer.ledger.imbalance == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reward_that_hangs_ends_the_run_if_no_group_may_be_lost(engine: str, start: Start) -> None:
    config = start(engine, HANGS_ONCE, "reward.timeout_s=0.5", "replay.max_lost_groups=0")

    with pytest.raises(RolloutError, match=r"\(timeout\), and the limit replay\.max_lost_groups = 0") as caught:
        build_trainer(config).fit()

    assert re.search(named("judge"), str(caught.value.__cause__))


BAD = {
    "raises": ("raise ValueError('boom')", "raised ValueError: boom"),
    "NaN": ("return float('nan')", "nan"),
    "text": ("return 'good'", "'good'"),
    "several elements": ("import torch; return torch.zeros(3)", "3"),
    "None": ("return None", "None"),
    "no score in a mapping": ("return {'points': 1}", "points"),
}


@pytest.mark.parametrize("engine", ["inline", "thread"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_value_of_a_reward_is_named_with_prompt_and_answer(kind: str, engine: str, start: Start) -> None:
    body, found = BAD[kind]
    config = start(engine, f"def judge(answer, truth):\n    {body}\n")

    with pytest.raises(RolloutError, match=r"\(error\), and the limit replay\.max_failed_groups = 0") as caught:
        build_trainer(config).fit()

    text = str(caught.value.__cause__)
    assert "reward" in text
    assert "judge" in text
    assert found in text
    assert re.search(r"the answer '.*' to 'prompt \d+'", text)


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_a_wrong_number_of_values_is_named_with_the_prompt(engine: str, start: Start) -> None:
    config = start(engine, "def judge(prompts, completions):\n    return [1.0]\n")

    with pytest.raises(RolloutError) as caught:
        build_trainer(config).fit()

    assert re.search(r"the reward 'judge' .*1 .*2 answers to 'prompt \d+'", str(caught.value.__cause__))


HANGS = """
import sys, threading

def judge(answer, truth):
    sys.stdout.write("AT judge\\n")
    sys.stdout.flush()
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_ends_a_run_whose_reward_hangs(
    engine: str, number: signal.Signals, start: Start, tmp_path: Path
) -> None:
    start(engine, HANGS)
    run = SubprocessRun(tmp_path, *FIT, "run.yaml")
    run.until("AT judge")
    sent = run.send(number)

    assert run.ended() == 128 + number, run.err
    assert time.monotonic() - sent < 10
    assert "judge (" in run.err
    assert run.left() == []


@pytest.mark.parametrize("engine", ["thread", PROCESS])
def test_a_run_ends_although_a_reward_hangs_that_no_step_needs(engine: str, start: Start) -> None:
    config = start(engine, HANGS_ONCE, "trainer.num_warmup_batches=2", "reward.timeout_s=null")

    assert build_trainer(config).fit().step == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


LIMITED = """
import threading

LOCK, counts = threading.Lock(), {"now": 0, "most": 0}

def judge(completions, **columns):
    with LOCK:
        counts["now"] += 1
        counts["most"] = max(counts["now"], counts["most"])
        if counts["most"] > LIMIT:
            raise ValueError(f"{counts['most']} calls at once")
    threading.Event().wait(0.01)
    with LOCK:
        counts["now"] -= 1
    return [0.5] * len(completions)
"""


@pytest.mark.parametrize(
    ("engine", "limit"),
    [("inline", 1), ("thread, workers: 2", 3), pytest.param("process, workers: 1", 2, marks=pytest.mark.slow)],
)
def test_a_reward_is_called_for_at_most_workers_groups_at_once(engine: str, limit: int, start: Start) -> None:
    """Validation and generation share the limit. The inline engine calls one after the other."""
    workers = f"reward.workers={8 if engine == 'inline' else limit}"
    config = start(engine, LIMITED.replace("LIMIT", str(limit)), workers, "trainer.num_warmup_batches=3")

    assert build_trainer(config).fit().step == 3
