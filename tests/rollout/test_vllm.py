"""The server engine with a real server of vLLM, from an environment of its own.

HOOKTRAINER_VLLM_PYTHON=/path/to/vllm/bin/python python -m pytest -n 0 -m proof tests/rollout/test_vllm.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import make_tiny_llama
import numpy as np
import pytest
import torch
from torch import nn

from helpers.rollouts import TASK, Queue
from hooktrainer.algorithms.logprobs import log_policy
from hooktrainer.errors import SyncError
from hooktrainer.models.huggingface_options import HuggingFaceOptions
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Canary, Example, Floats, Group, Prompt
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.server.engine import ServerOptions
from hooktrainer.rollout.server.server_engine import ServerEngine
from hooktrainer.weight_sync.same_host import SameHostTransport

PYTHON = os.environ.get("HOOKTRAINER_VLLM_PYTHON", "")
START_S = 300
TEMPERATURE = 0.7
LENGTH = 48
TOKENS = np.array([5, 9, 12, 30, 31, 32, 8])
PROCESSED = ("--logprobs-mode", "processed_logprobs")
pytestmark = [pytest.mark.proof, pytest.mark.skipif(not PYTHON, reason="HOOKTRAINER_VLLM_PYTHON names no Python")]


@contextmanager
def vllm(model: Path, *options: str) -> Iterator[str]:
    """Run a server until the block ends; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--enforce-eager", "--dtype", "float32", "--generation-config", "vllm", *options]
    threads = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    environment = {
        **os.environ,
        **threads,
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    log = model.parent / f"vllm-{port}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until_healthy(server, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(60)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


class Llama:
    """A small model in versions, and an engine for it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        make_tiny_llama.main([str(folder), "--steps", "1", "--heads", "2", *flags])
        self.options = HuggingFaceOptions(path=str(folder))
        self.tokenizer = self.options.tokenizer(TASK)

    def version(self, number: int = 0) -> nn.Module:
        model = self.options.build(vocab_size=self.tokenizer.vocab_size, max_length=LENGTH + 8, seed=0)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2.0).add_(0.05 * number * torch.randn(parameter.shape, generator=generator))
        return model

    def logprobs(self, number: int, text: Sequence[int], start: int = 1) -> Floats:
        model = self.version(number)
        rows = [torch.tensor([text[:count]]) for count in range(start, len(text))]
        with torch.no_grad():
            logits = torch.cat([model.prefill(row, [row.shape[1]], model.new_cache(1, row.shape[1])) for row in rows])
        return np.asarray(log_policy(logits, TEMPERATURE).gather(1, torch.tensor(text[start:])[:, None])[:, 0])

    def engine(self, url: str, folder: Path, on_sync: str = "finish") -> ServerEngine:
        config = GeneratorConfig(
            policy=self.version,
            tokenizer=self.tokenizer,
            task=TASK,
            seed=0,
            max_length=LENGTH + 8,
            save=self.options.save,
        )
        options = ServerOptions(
            urls=[url], weights_dir=folder, n=4, temperature=TEMPERATURE, max_response_length=LENGTH, on_sync=on_sync
        )
        engine = options.build(config)
        assert isinstance(engine, ServerEngine)
        return engine

    def publish(self, engine: ServerEngine, number: int, transport: SameHostTransport) -> None:
        canary = Canary(tokens=TOKENS, logprobs=self.logprobs(number, TOKENS.tolist()).astype(np.float32), atol=1e-4)
        transport.publish(full_state(self.version(number)), number, [engine], canary=canary)


def groups(count: int) -> list[Group]:
    example = Example("1+1=", {"truth": "2"})
    prompts = [Prompt(example, np.array([5 + number, 9, 12, 30])) for number in range(count)]
    return [Group(number=number, stamp=2, prompt=prompt) for number, prompt in enumerate(prompts)]


def test_tokens_have_the_log_probabilities_of_their_version(tmp_path: Path) -> None:
    llama = Llama(tmp_path / "model", "--untied")
    spans = []
    with vllm(tmp_path / "model", *PROCESSED) as url:
        for on_sync in ("finish", "continue"):
            engine, transport, queue = llama.engine(url, tmp_path / "weights", on_sync), SameHostTransport(), Queue()
            try:
                llama.publish(engine, 0, transport)
                llama.publish(engine, 1, transport)
                engine.start(queue)
                queue.dispatch(groups(16))
                queue.wait_until(lambda queue=queue: len(queue.claimed) > 0)
                llama.publish(engine, 2, transport)
                queue.wait_for(16)
            finally:
                engine.close()
            assert not queue.failed
            worst = 0.0
            for group in groups(16):
                for answer in queue.finished[group.number]:
                    text, start = [*group.prompt.tokens.tolist(), *answer.tokens.tolist()], len(group.prompt.tokens)
                    by_version = {
                        number: llama.logprobs(number, text, start) for number in set(answer.versions.tolist())
                    }
                    expected = [by_version[number][place] for place, number in enumerate(answer.versions.tolist())]
                    worst = max(worst, float(np.abs(answer.logprobs - expected).max()))
                    spans.append((on_sync, answer.span))
            print(f"{on_sync}: largest difference {worst:.2g}")  # noqa: T201 - the figure of the README
            assert worst < 1e-3
    assert ("finish", 2) not in spans
    assert ("continue", 2) in spans


def assert_refused(llama: Llama, url: str, folder: Path, version: int, reason: str) -> None:
    engine = llama.engine(url, folder)
    try:
        with pytest.raises(SyncError, match=reason):
            llama.publish(engine, version, SameHostTransport())
    finally:
        engine.close()


def test_raw_log_probabilities_are_refused(tmp_path: Path) -> None:
    llama = Llama(tmp_path / "model", "--untied")
    with vllm(tmp_path / "model", "--logprobs-mode", "raw_logprobs") as url:
        assert_refused(llama, url, tmp_path / "weights", 0, "processed_logprobs")


def test_a_tied_head_that_stays_old_is_caught(tmp_path: Path) -> None:
    llama = Llama(tmp_path / "model")
    with vllm(tmp_path / "model", *PROCESSED) as url:
        assert_refused(llama, url, tmp_path / "weights", 1, "does not use the weights that it confirmed")
