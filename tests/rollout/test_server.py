"""Servers: their tokens have the right versions, their faults have an error that helps, and a dead one is replaced."""

from __future__ import annotations

import gc
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from helpers.environments import Scripted, Talk
from helpers.rollouts import LENGTH, TASK, TOKENIZER, Queue, build, generator_config, groups, versions_of
from helpers.serving import EndsServers, ModelServer, served, serving
from hooktrainer import build_trainer
from hooktrainer.algorithms.logprobs import log_policy
from hooktrainer.config import Config
from hooktrainer.errors import ConfigError, HookTrainerError, RolloutError, SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.models.saved_decoder import SavedDecoder
from hooktrainer.ports import Canary, Floats, Group, Tokens, Trajectory
from hooktrainer.rollout.server.engine import ServerOptions
from hooktrainer.rollout.server.group_feed import GroupFeed
from hooktrainer.rollout.server.server_engine import ServerEngine
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.weight_sync.same_host import SameHostTransport

TOKENS = np.array([4, 2, 3, 5, 2])
Make = Callable[..., ServerEngine]


@pytest.fixture
def servers() -> Iterator[list[ModelServer]]:
    with serving(2) as both:
        yield both


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    engines: list[ServerEngine] = []

    def made(servers: Sequence[ModelServer], **options: Any) -> ServerEngine:
        engines.append(served(servers, tmp_path, **options))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]
    assert not list(tmp_path.iterdir())


def logprobs_of(seed: int, prompt: Tokens, answer: Tokens, temperature: float = 1.0) -> Floats:
    """Return the log-probabilities of an answer under the weights of a version, whose number is the seed."""
    model, text = build(seed=seed), np.concatenate([prompt, answer])
    rows = [torch.from_numpy(text[:count])[None] for count in range(len(prompt), len(text))]
    with torch.no_grad():
        logits = torch.cat([model.prefill(row, [row.shape[1]], model.new_cache(1, row.shape[1])) for row in rows])
    values = log_policy(logits, temperature).gather(1, torch.from_numpy(answer)[:, None])
    return np.asarray(values[:, 0])


def publish(
    engine: ServerEngine, version: int, transport: SameHostTransport | None = None, temperature: float = 1.0
) -> None:
    """Publish the weights of a version with its canary."""
    expected = logprobs_of(version, TOKENS[:1], TOKENS[1:], temperature)
    canary = Canary(tokens=TOKENS, logprobs=expected.astype(np.float32), atol=1e-4)
    (transport or SameHostTransport()).publish(full_state(build(seed=version)), version, [engine], canary=canary)


def start_frozen(engine: ServerEngine, queue: Queue, server: ModelServer) -> None:
    """Publish version 0, and generate until the server stands still in the middle of answers."""
    publish(engine, 0)
    server.freeze_after(5)
    engine.start(queue)
    assert server.frozen.wait(20)


def assert_holds(engine: ServerEngine, version: int) -> None:
    assert engine.version == version
    for row in engine.logprobs(TOKENS):
        np.testing.assert_allclose(row, logprobs_of(version, TOKENS[:1], TOKENS[1:]), atol=1e-5)


def assert_sampled_from_versions(group: Group, answers: Sequence[Trajectory], temperature: float = 1.0) -> None:
    """Check that each log-probability is that of the weights of the token's version."""
    for answer in answers:
        by_version = {
            version: logprobs_of(version, group.prompt.tokens, answer.tokens, temperature)
            for version in set(answer.versions.tolist())
        }
        expected = [by_version[version][place] for place, version in enumerate(answer.versions.tolist())]
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    servers: list[ModelServer], make: Make, temperature: float
) -> None:
    engine, queue = make(servers, temperature=temperature), Queue(groups(6))
    publish(engine, 0, temperature=temperature)
    engine.start(queue)
    queue.wait_for(6)
    assert not queue.failed
    for group in groups(6):
        assert_sampled_from_versions(group, queue.finished[group.number], temperature)
    answers = [answer for own in queue.finished.values() for answer in own]
    assert len({tuple(answer.tokens.tolist()) for answer in answers}) > 6
    assert all(answer.truncated == (len(answer.tokens) == LENGTH and answer.tokens[-1] != 0) for answer in answers)


def test_groups_are_shared_and_answers_repeat(servers: list[ModelServer], make: Make) -> None:
    tokens = []
    for _ in range(2):
        engine, queue = make(servers), Queue(groups(8))
        publish(engine, 0)
        for server in servers:
            server.bodies.clear()
        engine.start(queue)
        queue.wait_for(8)
        sampled = [sum(bool(body.get("stream")) for body in server.bodies) for server in servers]
        assert sampled == [8, 8]  # 4 groups of 2 answers each
        tokens.append([[answer.tokens.tolist() for answer in queue.finished[number]] for number in range(8)])
        engine.close()
    assert tokens[0] == tokens[1]


class TestSyncs:
    def test_a_sync_reloads_every_server_clears_caches_and_keeps_two_folders(
        self, servers: list[ModelServer], make: Make, tmp_path: Path
    ) -> None:
        engine = make(servers)
        for version in range(4):
            publish(engine, version)
            assert_holds(engine, version)
        (directory,) = tmp_path.iterdir()
        assert sorted(path.name for path in directory.iterdir()) == ["version-2", "version-3"]
        for server in servers:
            assert [Path(path).name for path in server.loaded] == [f"version-{version}" for version in range(4)]
            assert server.calls.count("/pause?wait") == 4

    def test_a_cut_answer_continues_on_the_new_weights(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers[:1], on_sync="continue"), Queue(groups(1))
        start_frozen(engine, queue, servers[0])
        publish_while_frozen(engine, servers[0], 1)
        queue.wait_for(1)
        answers = queue.finished[0]
        assert versions_of(answers) == {0, 1}
        assert all((np.diff(answer.versions) >= 0).all() for answer in answers)
        assert_sampled_from_versions(groups(1)[0], answers)
        assert "/pause?keep" in servers[0].calls

    def test_a_sync_waits_for_answers_that_finish(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers[:1], on_sync="finish"), Queue(groups(1))
        start_frozen(engine, queue, servers[0])
        threading.Timer(0.05, servers[0].freeze_after, [np.inf]).start()
        publish(engine, 1)
        queue.wait_for(1)
        assert versions_of(queue.finished[0]) == {0}
        assert_sampled_from_versions(groups(1)[0], queue.finished[0])

    def test_a_sync_that_waits_too_long_is_refused_and_generation_continues(
        self, servers: list[ModelServer], make: Make
    ) -> None:
        engine, queue = make(servers[:1], sync_timeout_s=0.1), Queue(groups(1))
        start_frozen(engine, queue, servers[0])
        with pytest.raises(SyncError, match=r"rollout\.sync_timeout_s.* answers in flight on servers"):
            publish(engine, 1)
        servers[0].freeze_after(np.inf)
        queue.wait_for(1)
        assert versions_of(queue.finished[0]) == {0}

    @pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weight_version", "/resume"])
    def test_a_server_that_fails_in_a_sync_leaves_the_old_weights_on_all(
        self, servers: list[ModelServer], make: Make, path: str
    ) -> None:
        engine, transport, queue = make(servers), SameHostTransport(), Queue()
        publish(engine, 0, transport)
        engine.start(queue)
        servers[1].failures[path] = [(400, {})]
        with pytest.raises(SyncError, match=f"status 400 to {path}"):
            publish(engine, 1, transport)
        assert_holds(engine, 0)
        queue.dispatch(groups(2))
        queue.wait_for(2)
        for group in groups(2):
            assert versions_of(queue.finished[group.number]) == {0}
            assert_sampled_from_versions(group, queue.finished[group.number])
        publish(engine, 1, transport)
        assert_holds(engine, 1)

    @pytest.mark.parametrize("fault", ["keeps_head", "keeps_cache"])
    def test_a_head_or_cache_that_stays_old_is_caught_and_the_old_weights_are_proven(
        self, servers: list[ModelServer], make: Make, fault: str
    ) -> None:
        engine, transport = make(servers), SameHostTransport()
        publish(engine, 0, transport)
        engine.logprobs(TOKENS)
        setattr(servers[1], fault, True)
        with pytest.raises(SyncError, match="does not use the weights that it confirmed") as caught:
            publish(engine, 1, transport)
        assert "__notes__" not in vars(caught.value.__cause__)  # the old weights are in use again
        setattr(servers[1], fault, False)
        assert_holds(engine, 0)

    def test_a_server_that_cannot_be_restored_begins_nothing(self, servers: list[ModelServer], make: Make) -> None:
        engine, transport, queue = make(servers), SameHostTransport(), Queue(groups(1))
        publish(engine, 0, transport)
        servers[1].failures["/collective_rpc"] = [(400, {})] * 3
        with pytest.raises(SyncError) as caught:
            publish(engine, 1, transport)
        assert any("could not load its old weights again" in note for note in caught.value.__cause__.__notes__)
        engine.start(queue)
        engine.close()
        assert not queue.finished

    def test_after_a_failed_first_sync_servers_resume_and_no_group_begins(
        self, servers: list[ModelServer], make: Make
    ) -> None:
        engine = make(servers)
        servers[1].keeps_head = True
        with pytest.raises(SyncError, match="does not use the weights"):
            publish(engine, 0)
        assert engine.version == -1
        assert [server.calls[-1] for server in servers] == ["/resume"] * 2

    def test_another_version_than_written_is_an_error(self, servers: list[ModelServer], make: Make) -> None:
        servers[0].ignores_version = True
        with pytest.raises(SyncError, match=r"has the weights 'default' instead of 'hooktrainer-\w+/0'"):
            publish(make(servers[:1]), 0)

    def test_the_reset_of_a_cache_is_repeated(self, servers: list[ModelServer], make: Make) -> None:
        servers[0].busy_cache = True
        publish(make(servers[:1]), 0)
        assert servers[0].calls.count("/reset_prefix_cache") == 2


def publish_while_frozen(engine: ServerEngine, server: ModelServer, version: int) -> None:
    """Publish on a frozen server, whose canary needs tokens."""
    reset = engine._pool.load

    def load(*args: Any) -> None:
        server.freeze_after(np.inf)
        reset(*args)

    engine._pool.load = load  # type: ignore[method-assign]
    publish(engine, version)


def test_a_turn_after_a_sync_uses_the_new_weights_and_each_turn_its_tokens(make: Make) -> None:
    """The policy writes `3` and ends its turn; the environment replies twice."""
    long = 24
    config = attrs.evolve(generator_config(Scripted, Talk()), max_length=TASK.longest_prompt + long)
    with serving(load=lambda _: Scripted()) as servers:
        engine = make(servers, config=config, save=write_nothing, max_response_length=long, on_sync="continue")
        weights = full_state(Scripted())
        SameHostTransport().publish(weights, 3, [engine])
        queue = Queue(groups(1))
        servers[0].freeze_after(4)  # both answers of the group have their first turn
        engine.start(queue)
        assert servers[0].frozen.wait(20)
        SameHostTransport().publish(weights, 4, [engine])
        servers[0].freeze_after(np.inf)
        queue.wait_for(1)
        assert not queue.failed
    for answer in queue.finished[0]:
        assert answer.text == "3\n+1\n3\n=\n3"
        assert answer.score == 0.5
        assert answer.versions[:2].tolist() == [3, 3]
        assert answer.versions[-1] == 4
        assert answer.loss_mask is not None


def test_an_environment_that_raises_fails_its_group_only(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    long = 24
    config = attrs.evolve(
        generator_config(Scripted, Talk(replies=[ValueError("no tool")])), max_length=TASK.longest_prompt + long
    )
    with serving(load=lambda _: Scripted()) as servers:
        engine = make(servers, config=config, save=write_nothing, max_response_length=long)
        SameHostTransport().publish(full_state(Scripted()), 0, [engine])
        queue = Queue(groups(2))
        engine.start(queue)
        queue.wait_for(2)
        engine.pump()
    assert all("ValueError: no tool" in str(error) and reason == "error" for error, reason in queue.failed.values())
    gc.collect()
    assert not caplog.records


def write_nothing(_module: object, _tokenizer: object, folder: Path) -> None:
    (folder / "empty").touch()


class TestStart:
    """Faults that are found before the first group."""

    def test_raw_logprobs_are_refused_with_the_option_to_set(self, servers: list[ModelServer], make: Make) -> None:
        servers[0].raw_logprobs = True
        with pytest.raises(SyncError, match="Start it with --logprobs-mode processed_logprobs"):
            publish(make(servers[:1]), 0)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_distribution_without_spread_is_checked_too(
        self, servers: list[ModelServer], make: Make, seed: int
    ) -> None:
        engine = make(servers[:1])
        uniform = {name: torch.zeros_like(tensor) for name, tensor in full_state(build()).items()}
        SameHostTransport().publish(uniform, 0, [engine])
        servers[0].raw_logprobs = True
        with pytest.raises(SyncError, match="processed_logprobs"):
            SameHostTransport().publish(uniform, 0, [make(servers[:1])])

    def test_missing_control_routes_name_the_variable_to_set(self, make: Make) -> None:
        with serving(dev_mode=False) as servers, pytest.raises(SyncError, match="VLLM_SERVER_DEV_MODE=1"):
            publish(make(servers), 0)

    def test_a_refused_key_names_the_variable_and_shows_no_key(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(key="right-key") as servers:
            with pytest.raises(SyncError, match="401 .* a request without an API key. Set VLLM_API_KEY"):
                publish(make(servers), 0)
            monkeypatch.setenv("OWN_KEY", "wrong-key")
            with pytest.raises(SyncError, match="refuses the API key in the environment variable OWN_KEY") as caught:
                publish(make(servers, api_key_env="OWN_KEY"), 0)
            assert "wrong-key" not in str(caught.value)
            monkeypatch.setenv("OWN_KEY", "right-key")
            engine = make(servers, api_key_env="OWN_KEY")
            publish(engine, 0)
            assert_holds(engine, 0)

    def test_another_model_is_refused_with_the_names_that_are_served(
        self, servers: list[ModelServer], make: Make
    ) -> None:
        with pytest.raises(SyncError, match="serves the models 'policy'; expected 'polcy'.* Did you mean 'policy'"):
            publish(make(servers, model="polcy"), 0)
        servers[0].names = ["policy", "other"]
        with pytest.raises(SyncError, match=r"'policy', 'other'; set rollout\.model"):
            publish(make(servers), 0)
        publish(make(servers, model="policy"), 0)

    def test_too_short_a_server_is_refused(self, servers: list[ModelServer], make: Make) -> None:
        servers[0].max_model_len = 8
        with pytest.raises(SyncError, match=r"takes 8 tokens .* --max-model-len \d+"):
            publish(make(servers), 0)

    def test_no_server_names_its_address(self, make: Make) -> None:
        with serving() as servers:
            engine = make(servers)
            url = servers[0].url
        with pytest.raises(SyncError, match=f"no server is left: the server {url} cannot be reached"):
            publish(engine, 0)

    def test_something_other_than_vllm_is_refused(self, servers: list[ModelServer], make: Make) -> None:
        servers[0].failures["/v1/models"] = [(404, {})]
        with pytest.raises(SyncError, match=r"rollout\.urls must name servers of vLLM"):
            publish(make(servers), 0)


class TestFaults:
    """Faults while groups are answered."""

    @pytest.fixture
    def run(self, servers: list[ModelServer], make: Make) -> Callable[..., tuple[ServerEngine, Queue]]:
        def run(**options: Any) -> tuple[ServerEngine, Queue]:
            engine, queue = make(servers[:1], **options), Queue(groups(2))
            publish(engine, 0)
            engine.start(queue)
            return engine, queue

        return run

    @pytest.mark.parametrize("failure", [(500, {}), (503, {}), (429, {"Retry-After": "0.01"}), (429, {})])
    def test_a_failure_that_passes_is_repeated(
        self, servers: list[ModelServer], run: Callable[..., tuple[ServerEngine, Queue]], failure: Any
    ) -> None:
        servers[0].failures["/v1/completions"] = []
        _, queue = run()
        queue.wait_for(2)
        servers[0].failures["/v1/completions"] = [failure] * 3
        queue.dispatch([attrs.evolve(groups(1)[0], number=2)])
        queue.wait_for(3)
        assert not queue.failed

    @pytest.mark.parametrize(("status", "expected"), [(500, "See the log of the server"), (429, "lower rollout.slots")])
    def test_a_failure_that_stays_fails_the_group(
        self, servers: list[ModelServer], make: Make, status: int, expected: str
    ) -> None:
        engine, queue = make(servers[:1], request_timeout_s=0.3), Queue(groups(1))
        publish(engine, 0)
        servers[0].failures["/v1/completions"] = [(status, {})] * 1000
        engine.start(queue)
        queue.wait_for(1)
        error, reason = queue.failed[0]
        assert reason == "error"
        assert expected in str(error)
        assert f"made to fail with {status}" in str(error)

    def test_a_truncated_answer_goes_on_with_its_tokens(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers[:1]), Queue(groups(1))
        publish(engine, 0)
        servers[0].truncate_after = [2, 0, 3]
        engine.start(queue)
        queue.wait_for(1)
        assert_sampled_from_versions(groups(1)[0], queue.finished[0])
        longer = [len(body["prompt"]) for body in servers[0].bodies if body.get("stream")]
        assert max(longer) > min(longer)

    def test_an_answer_that_is_always_truncated_fails_its_group(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers[:1]), Queue(groups(1))
        publish(engine, 0)
        servers[0].truncate_after = [0] * 1000
        engine.start(queue)
        queue.wait_for(1)
        assert "truncated its reply to /v1/completions, also when it was repeated" in str(queue.failed[0][0])

    @pytest.mark.parametrize(
        ("fault", "value", "expected"),
        [
            ("no_logprobs", True, "tokens with 0 log-probabilities"),
            ("no_token_ids", True, "returned text without token ids"),
            ("names", ["other"], "it has no such route or model"),
            ("stop_token", "sampled", "--generation-config vllm"),
        ],
    )
    def test_a_server_that_cannot_be_used_ends_the_run(
        self, servers: list[ModelServer], make: Make, fault: str, value: object, expected: str
    ) -> None:
        engine, queue = make(servers[:1]), Queue()
        publish(engine, 0)
        first = int(engine.answer([groups(1)[0].prompt])[0].tokens[0])
        setattr(servers[0], fault, first if value == "sampled" else value)
        engine.start(queue)
        if fault == "stop_token":
            with pytest.raises(RolloutError, match=expected):
                engine.answer([groups(1)[0].prompt])
            return
        queue.dispatch(groups(1))
        queue.wait_for(1)
        with pytest.raises(RolloutError, match=expected):
            engine.pump()

    def test_an_engine_may_be_closed_while_answers_are_in_flight(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers), Queue(groups(4))
        publish(engine, 0)
        servers[0].freeze_after(3)
        servers[1].freeze_after(3)
        engine.start(queue)
        assert all(server.frozen.wait(20) for server in servers)
        engine.close()
        assert not queue.finished
        assert not queue.failed

    def test_an_error_in_the_thread_that_claims_groups_ends_the_run(
        self, servers: list[ModelServer], make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_feed: object, _group: object) -> None:
            raise MemoryError("no room")

        engine, queue = make(servers), Queue(groups(1))
        publish(engine, 0)
        monkeypatch.setattr(GroupFeed, "_assign", fail)
        engine.start(queue)
        queue.wait_until(lambda: queue.closed)
        with pytest.raises(RolloutError, match="the thread rollout-feed failed: MemoryError"):
            engine.pump()


class TestDeaths:
    def test_a_server_that_vanishes_is_dropped_and_its_groups_fail_as_worker_died(
        self, servers: list[ModelServer], make: Make
    ) -> None:
        engine, queue = make(servers), Queue(groups(4))
        publish(engine, 0)
        for server in servers:
            server.freeze_after(3)
        engine.start(queue)
        assert all(server.frozen.wait(20) for server in servers)
        assert servers[0].url in engine.describe_workers()
        servers[0].vanish()
        queue.wait_for(2)
        assert len(queue.failed) == 2
        for error, reason in queue.failed.values():
            assert reason == "worker_died"
            assert f"the server {servers[0].url} cannot be reached" in str(error)
        servers[1].freeze_after(np.inf)
        queue.dispatch([attrs.evolve(group, number=10 + group.number) for group in groups(4)])
        queue.wait_for(8)
        assert len(queue.finished) == 6
        engine.pump()
        assert engine.take_metrics()["rollout/servers_dropped"].value == 1
        publish(engine, 1)
        assert engine.logprobs(TOKENS).shape == (1, 4)

    def test_a_server_that_returns_is_used_after_the_next_sync(self, servers: list[ModelServer], make: Make) -> None:
        engine = make(servers)
        publish(engine, 0)
        servers[0].vanish()
        publish(engine, 1)
        assert engine.logprobs(TOKENS).shape == (1, 4)
        servers[0] = ModelServer(port=servers[0].port)
        assert engine.logprobs(TOKENS).shape == (1, 4)
        publish(engine, 2)
        assert engine.logprobs(TOKENS).shape == (2, 4)
        assert_holds(engine, 2)
        servers[0].vanish()

    def test_a_server_that_returns_with_other_options_is_left_out(
        self, servers: list[ModelServer], make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(servers)
        publish(engine, 0)
        servers[0].vanish()
        publish(engine, 1)
        servers[0] = ModelServer(port=servers[0].port)
        servers[0].raw_logprobs = True
        publish(engine, 2)
        assert engine.logprobs(TOKENS).shape == (1, 4)
        assert "can be reached again, but not be used" in caplog.text
        servers[0].raw_logprobs = False
        publish(engine, 3)
        assert engine.logprobs(TOKENS).shape == (2, 4)
        servers[0].vanish()

    def test_without_any_server_the_run_ends(self, servers: list[ModelServer], make: Make) -> None:
        engine, queue = make(servers), Queue(groups(4))
        publish(engine, 0)
        for server in servers:
            server.freeze_after(3)
        engine.start(queue)
        assert all(server.frozen.wait(20) for server in servers)
        for server in servers:
            server.vanish()
        queue.wait_for(4)
        assert queue.closed
        with pytest.raises(RolloutError, match=r"no server is left: .* run\.resume=auto"):
            engine.pump()

    def test_validation_goes_on_with_another_server(self, servers: list[ModelServer], make: Make) -> None:
        engine = make(servers)
        publish(engine, 0)
        prompts = [group.prompt for group in groups(4)]
        expected = [answer.tokens.tolist() for answer in engine.answer(prompts)]
        servers[1].vanish()
        assert [answer.tokens.tolist() for answer in engine.answer(prompts)] == expected


class TestOptions:
    def made(self, *urls: str) -> ServerOptions:
        return ServerOptions(urls=urls, weights_dir="weights")

    def test_without_the_library_the_options_state_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pip install 'hooktrainer\[server\]'"):
            self.made("http://localhost:8000")

    def test_addresses_may_end_as_those_of_clients_do(self) -> None:
        assert self.made("http://one:8000/v1/", "https://two").urls == ("http://one:8000", "https://two")

    @pytest.mark.parametrize("urls", [(), ("localhost:8000",), ("ftp://one",), ("http://",), ("http://a", "http://a/")])
    def test_other_addresses_are_refused(self, urls: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError, match=r"address|twice"):
            self.made(*urls)

    def test_a_key_in_an_address_is_refused_without_showing_it(self) -> None:
        with pytest.raises(ConfigError, match="contains a key") as caught:
            self.made("http://user:secret@localhost:8000")
        assert "secret" not in str(caught.value)

    def test_a_model_without_save_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no `save"):
            ServerOptions(urls=["http://a"], weights_dir=tmp_path).build(generator_config())


RUN = {
    "seed": 0,
    "task": "addition",
    "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
    "trainer": {"total_steps": 3, "train_batch_size": 4, "ppo_mini_batch_size": 2, "parameter_sync_step": 2},
    "plugins": [
        "metric_aggregation",
        "weight_sync",
        {"use": "staleness", "max_off_policy_threshold": 4},
        {"use": "validation", "size": 4},
        {"use": "helpers.serving:EndsServers"},
        {"use": "log_after_collect", "sinks": ["jsonl"]},
        "checkpoint",
    ],
}


class TestRuns:
    @pytest.fixture
    def decoders(self) -> Iterator[list[ModelServer]]:
        sizes = {"vocab_size": TOKENIZER.vocab_size, "max_length": 0, "seed": 0}
        with serving(2, load=lambda folder: SavedDecoder(path=folder).build(**sizes), key="right-key") as servers:
            yield servers

    def config(self, servers: list[ModelServer], folder: Path, **rollout: Any) -> Config:
        urls = [server.url for server in servers]
        own = {"use": "server", "urls": urls, "weights_dir": str(folder / "weights"), "n": 2, "max_response_length": 4}
        return config_from_mapping(
            {**RUN, "rollout": {**own, "retry_s": 0.3, **rollout}, "run": {"dir": str(folder / "run")}}
        )

    def test_a_run_continues_with_the_servers_that_are_left_and_stores_no_key(
        self, decoders: list[ModelServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("VLLM_API_KEY", "right-key")
        EndsServers.servers = decoders[:1]
        assert build_trainer(self.config(decoders, tmp_path)).fit().step == 3
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert any(path.name == "metrics.jsonl" for path in files)
        assert not [path for path in files if b"right-key" in path.read_bytes()]
        assert not list((tmp_path / "weights").iterdir())

    def test_a_run_without_servers_ends_with_what_to_do(
        self, decoders: list[ModelServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("VLLM_API_KEY", "right-key")
        EndsServers.servers = list(decoders)
        with pytest.raises(HookTrainerError, match="no server is left"):
            build_trainer(self.config(decoders, tmp_path)).fit()
