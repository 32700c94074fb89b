"""The protocol of a weight sync: all engines are updated or none, for a failure of any call."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hooktrainer import ports
from hooktrainer.errors import SyncError
from hooktrainer.ports import Canary
from hooktrainer.weight_sync import exclusive
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.same_host import SameHostTransport

TOKENS = np.array([3, 1, 2])
STEPS = ("spec", "stage", "pause", "flip", "version", "logprobs", "resume")


def weights_of(version: int) -> dict[str, Tensor]:
    return {"w": torch.full((3,), float(version)), "b": torch.full((2,), version)}


def score(weights: Mapping[str, Tensor]) -> np.ndarray:
    total = sum(float(tensor.double().sum()) for tensor in weights.values())
    return np.full(len(TOKENS) - 1, -total, np.float32)


def canary(version: int) -> Canary:
    return Canary(tokens=TOKENS, logprobs=score(weights_of(version)), atol=1e-4)


@attrs.define(eq=False)
class Engine:
    """An engine that records its calls, and raises in the call `fails_on`, before or after it takes effect."""

    name: str = "a"
    events: list[str] = attrs.field(factory=list)
    fails_on: str = ""
    afterwards: bool = False
    error: BaseException = attrs.field(factory=lambda: ValueError("out of memory"))
    held: list[tuple[int, dict[str, Tensor]]] = attrs.field(factory=lambda: [(0, weights_of(0))])
    staged: tuple[int, dict[str, Tensor]] | None = None
    paused: bool = False
    sampled_while_paused: bool = False

    @property
    def version(self) -> int:
        if self.fails_on == "version" and len(self.held) > 1:
            return 99
        return self.held[-1][0]

    def spec(self) -> None:
        return self._do("spec", lambda: None)

    def stage(self, weights: ports.Weights, version: int) -> Mapping[str, int]:
        def copy() -> Mapping[str, int]:
            before = self.staged[1] if self.staged and self.staged[0] == version else {}
            copied = {name: tensor.clone() for name, tensor in weights.items()}
            self.staged = (version, before | copied)
            return {name: checksum(tensor) for name, tensor in copied.items()}

        return self._do("stage", copy)

    def pause(self) -> None:
        def pause() -> None:
            self.paused = True

        self._do("pause", pause)

    def flip(self) -> None:
        def flip() -> None:
            assert self.paused
            assert self.staged is not None
            self.held, self.staged = [self.held[-1], self.staged], None

        self._do("flip", flip)

    def unflip(self) -> None:
        def unflip() -> None:
            self.staged = None
            del self.held[1:]

        self._do("unflip", unflip)

    def resume(self) -> None:
        def resume() -> None:
            self.paused = False

        self._do("resume", resume)

    def logprobs(self, tokens: np.ndarray) -> np.ndarray:
        return self._do("logprobs", lambda: score(self.held[-1][1]))

    def _do(self, what: str, action: Callable[[], object]) -> object:
        self.events.append(f"{self.name} {what}")
        fails, self.fails_on = self.fails_on == what, "" if self.fails_on == what else self.fails_on
        if fails and not self.afterwards:
            raise self.error
        done = action()
        if fails:
            raise self.error
        return done


def published(
    transport: SameHostTransport, version: int, engines: Sequence[Engine], **options: object
) -> Mapping[str, object]:
    return transport.publish(weights_of(version), version, engines, canary=canary(version), **options)


def state(engine: Engine) -> tuple[int, list[float], bool, object]:
    version, held = engine.held[-1]
    return version, held["w"].tolist(), engine.paused, engine.staged


OLD = (0, [0.0] * 3, False, None)
NEW = (4, [4.0] * 3, False, None)


def test_same_host_transport_and_the_test_engine_implement_their_ports() -> None:
    assert isinstance(SameHostTransport(), ports.WeightTransport)
    assert isinstance(Engine(), ports.WeightHolder)


def test_a_sync_without_engines_is_refused() -> None:
    with pytest.raises(SyncError, match="there is no engine to publish it on"):
        published(SameHostTransport(), 4, [])


def test_each_phase_completes_on_every_engine_before_the_next() -> None:
    events: list[str] = []
    engines = [Engine("a", events), Engine("b", events)]
    metrics = published(SameHostTransport(), 4, engines)
    parts = ("spec",), ("stage",), ("pause",), ("flip",), ("logprobs",), ("resume",)
    assert events == [f"{name} {step}" for part in parts for name in "ab" for step in part]
    assert [state(engine) for engine in engines] == [NEW] * 2
    assert metrics["weight_sync/bytes"].value == 2 * (3 * 4 + 2 * 8)
    assert metrics["weight_sync/canary_error"].value == 0.0


class TestFailures:
    @pytest.mark.parametrize("afterwards", [False, True])
    @pytest.mark.parametrize("count", [2, 3])
    def test_failure_in_any_phase_leaves_every_engine_on_the_old_version_and_resumed(
        self, count: int, afterwards: bool
    ) -> None:
        for step, failing in itertools.product(STEPS, range(count)):
            engines = [Engine(str(place)) for place in range(count)]
            engines[failing] = Engine(str(failing), fails_on=step, afterwards=afterwards)
            transport = SameHostTransport()
            with pytest.raises(SyncError, match="version 4 was not published") as caught:
                published(transport, 4, engines)
            assert isinstance(caught.value.__cause__, SyncError if step == "version" else ValueError)
            left = [attrs.evolve(engine, fails_on="") for engine in engines]
            assert [(version, held, paused) for version, held, paused, _ in map(state, left)] == [OLD[:3]] * count, step
            for engine in engines:
                engine.fails_on = ""
            published(transport, 4, engines)
            assert [state(engine) for engine in engines] == [NEW] * count

    @given(st.lists(st.tuples(st.sampled_from(["", *STEPS]), st.booleans(), st.booleans()), min_size=2, max_size=3))
    def test_engines_that_fail_together_are_all_restored(self, plans: list[tuple[str, bool, bool]]) -> None:
        engines = [
            Engine(
                str(place), fails_on=step, afterwards=after, error=KeyboardInterrupt() if ctrl_c else OSError("gone")
            )
            for place, (step, after, ctrl_c) in enumerate(plans)
        ]
        try:
            published(SameHostTransport(), 4, engines)
        except (SyncError, KeyboardInterrupt):
            for engine in engines:
                engine.fails_on = ""
            assert [state(engine)[:3] for engine in engines] == [OLD[:3]] * len(engines)
        else:
            assert not any(step for step, _, _ in plans)
            assert [state(engine) for engine in engines] == [NEW] * len(engines)

    def test_engine_without_staged_weights_is_not_unflipped(self) -> None:
        engines = [Engine("a"), Engine("b", fails_on="stage")]
        with pytest.raises(SyncError):
            published(SameHostTransport(), 4, engines)
        assert "a unflip" in engines[0].events
        assert "b unflip" not in engines[1].events

    def test_an_interrupt_restores_all_engines_and_is_raised(self) -> None:
        engines = [Engine("a"), Engine("b", fails_on="flip", error=KeyboardInterrupt())]
        with pytest.raises(KeyboardInterrupt):
            published(SameHostTransport(), 4, engines)
        assert [state(engine) for engine in engines] == [OLD] * 2

    def test_interrupt_during_the_restore_is_raised_after_it(self) -> None:
        class Interrupted(Engine):
            def unflip(self) -> None:
                super().unflip()
                raise KeyboardInterrupt

        engines = [Interrupted("a"), Engine("b", fails_on="logprobs")]
        with pytest.raises(KeyboardInterrupt) as caught:
            published(SameHostTransport(), 4, engines)
        assert [state(engine) for engine in engines] == [OLD] * 2
        assert isinstance(caught.value.__cause__, ValueError)

    def test_an_engine_that_cannot_be_restored_is_named_and_the_others_are_restored(self) -> None:
        class Stuck(Engine):
            def unflip(self) -> None:
                raise OSError("stuck")

        engines = [Stuck("a"), Engine("b"), Engine("c", fails_on="logprobs")]
        with pytest.raises(SyncError) as caught:
            published(SameHostTransport(), 4, engines)
        assert [state(engine) for engine in engines[1:]] == [OLD] * 2
        assert not engines[0].paused
        assert caught.value.__cause__ is not None
        notes = "\n".join(caught.value.__cause__.__notes__)
        assert "engine 0 (Stuck) could not restore its old weights" in notes
        assert "OSError: stuck" in notes
        assert "engine 0 (Stuck) did not restore its old weights" in notes
        assert "it holds version 4, expected 0" in notes

    def test_an_engine_without_a_readable_version_does_not_hide_the_error(self) -> None:
        class Mute(Engine):
            @property
            def version(self) -> int:
                if "a unflip" in self.events:
                    raise OSError("the server is gone")
                return super().version

        engines = [Mute("a"), Engine("b", fails_on="logprobs")]
        with pytest.raises(SyncError, match="version 4 was not published: out of memory") as caught:
            published(SameHostTransport(), 4, engines)
        assert "the server is gone" in "".join(caught.value.__cause__.__notes__)
        assert state(engines[1]) == OLD

    def test_failures_during_the_restore_are_noted_once_per_engine(self) -> None:
        class Broken(Engine):
            def unflip(self) -> None:
                raise OSError("no way back") from RuntimeError("the worker is dead")

            def resume(self) -> None:
                raise OSError("no way on")

        engines = [*(Broken(name) for name in "abcd"), Engine("e", fails_on="flip")]
        with pytest.raises(SyncError) as caught:
            published(SameHostTransport(), 4, engines)
        assert caught.value.__cause__ is not None
        notes = "\n".join(caught.value.__cause__.__notes__)
        assert [notes.count(f"OSError: no way {way}") for way in ("back", "on")] == [4, 4]
        assert notes.count("RuntimeError: the worker is dead") == 4
        assert "out of memory" not in notes

    def test_missing_methods_of_an_engine_are_named(self) -> None:
        class Half:
            version = 0
            spec = stage = flip = unflip = Engine.unflip

        with pytest.raises(SyncError, match=r"engine 1 \(Half\) has no pause\(\), resume\(\), logprobs\(\)"):
            published(SameHostTransport(), 1, [Engine(), Half()])


class TestConcurrentSyncs:
    """One sync at a time on an engine, from the first check to the confirmation, and versions only rise."""

    @attrs.define(eq=False)
    class Acting(Engine):
        """Runs `action` once, inside the call `at`."""

        at: str = "stage"
        action: Callable[[], object] | None = None

        def _do(self, what: str, action: Callable[[], object]) -> object:
            if what == self.at and self.action is not None:
                inside, self.action = self.action, None
                inside()
            return super()._do(what, action)

    @pytest.mark.parametrize("same_transport", [True, False], ids=["one transport", "two transports"])
    def test_a_second_publish_waits_until_the_first_one_has_ended(self, same_transport: bool) -> None:
        first = SameHostTransport()
        second = first if same_transport else SameHostTransport()
        engine = self.Acting(held=[(5, weights_of(5))])
        later = threading.Thread(target=published, args=(second, 7, [engine]))

        def slow() -> None:
            later.start()
            later.join(0.4)

        engine.action = slow
        published(first, 6, [engine])
        later.join()
        parts = ["spec", "stage", "pause", "flip", "logprobs", "resume"]
        assert engine.events == [f"a {step}" for step in parts * 2]
        assert state(engine) == (7, [7.0] * 3, False, None)

    def test_the_later_one_of_two_publishes_is_refused_if_it_is_the_older_version(self) -> None:
        engine, errors = self.Acting(held=[(5, weights_of(5))]), []

        def publish_six() -> None:
            try:
                published(SameHostTransport(), 6, [engine])
            except SyncError as error:
                errors.append(str(error))

        older = threading.Thread(target=publish_six)
        engine.action = older.start
        published(SameHostTransport(), 7, [engine])
        older.join()
        assert state(engine) == (7, [7.0] * 3, False, None)
        assert ["engine 0 (Acting) already holds version 7" in text for text in errors] == [True]

    def test_syncs_of_other_engines_do_not_wait(self) -> None:
        one, other = self.Acting("a"), Engine("b")
        thread = threading.Thread(target=published, args=(SameHostTransport(), 7, [other]))

        def publish_elsewhere() -> None:
            thread.start()
            thread.join()

        one.action = publish_elsewhere
        published(SameHostTransport(), 6, [one])
        assert (one.version, other.version) == (6, 7)

    @pytest.mark.parametrize("version", [8, 7, 0])
    @pytest.mark.parametrize("same_transport", [True, False], ids=["one transport", "two transports"])
    def test_a_version_that_is_not_newer_is_refused(self, version: int, same_transport: bool) -> None:
        engine, transport = Engine(), SameHostTransport()
        published(transport, 8, [engine])
        events = list(engine.events)
        with pytest.raises(
            SyncError, match=rf"version {version} was not published: engine 0 \(Engine\) already holds "
        ):
            published(transport if same_transport else SameHostTransport(), version, [engine])
        assert (engine.events, state(engine)) == (events, (8, [8.0] * 3, False, None))
        published(transport, 9, [engine])
        assert engine.version == 9

    def test_one_engine_with_a_newer_version_refuses_the_sync_of_all(self) -> None:
        engines = [Engine("a"), Engine("b", held=[(9, weights_of(9))])]
        with pytest.raises(SyncError, match=r"engine 1 \(Engine\) already holds version 9"):
            published(SameHostTransport(), 4, engines)
        assert [engine.version for engine in engines] == [0, 9]
        assert [engine.events for engine in engines] == [[], []]

    def test_the_first_publish_of_a_run_may_replace_a_newer_version(self) -> None:
        engine = Engine(held=[(9, weights_of(9))])
        published(SameHostTransport(), 4, [engine], first=True)
        assert state(engine) == NEW

    def test_a_failed_first_publish_restores_the_newer_version(self) -> None:
        engine = Engine(held=[(9, weights_of(9))], fails_on="logprobs")
        with pytest.raises(SyncError):
            published(SameHostTransport(), 4, [engine], first=True)
        assert state(engine) == (9, [9.0] * 3, False, None)

    def test_a_failed_version_can_be_published_again_or_skipped(self) -> None:
        for retried in (6, 5, 7):
            engine, transport = Engine(fails_on="flip"), SameHostTransport()
            with pytest.raises(SyncError):
                published(transport, 6, [engine])
            published(transport, retried, [engine])
            assert engine.version == retried

    @pytest.mark.parametrize("same_transport", [True, False], ids=["one transport", "two transports"])
    @pytest.mark.parametrize("at", ["spec", "stage", "pause", "flip", "logprobs", "resume"])
    @pytest.mark.parametrize("caught", [True, False])
    def test_a_publish_inside_another_one_is_refused(self, at: str, caught: bool, same_transport: bool) -> None:
        engine, transport = self.Acting(held=[(5, weights_of(5))]), SameHostTransport()
        inner, errors = transport if same_transport else SameHostTransport(), []

        def publish() -> None:
            try:
                published(inner, 7, [engine])
            except SyncError as error:
                errors.append(str(error))
                if not caught:
                    raise

        engine.at, engine.action = at, publish
        if caught:
            published(transport, 6, [engine])
        else:
            with pytest.raises(SyncError, match="version 6 was not published: version 7 was not published"):
                published(transport, 6, [engine])
        assert "version 7 was not published: this thread is publishing version 6" in errors[0]
        assert len(errors) == 1
        assert (engine.version, engine.paused) == (6 if caught else 5, False)
        published(inner, 8, [engine])
        assert state(engine) == (8, [8.0] * 3, False, None)

    def test_a_publish_while_the_weights_are_read_is_refused(self) -> None:
        engine, transport = Engine(), SameHostTransport()

        class Reading(dict[str, Tensor]):
            def __getitem__(self, name: str) -> Tensor:
                published(transport, 7, [Engine("b")])
                return super().__getitem__(name)

        with pytest.raises(SyncError, match="this thread is publishing version 6"):
            transport.publish(Reading(weights_of(6)), 6, [engine])
        assert state(engine)[:3] == OLD[:3]

    def test_an_engine_may_forward_a_sync_to_other_engines_by_another_transport(self) -> None:
        inner, outer = Engine("inner"), self.Acting("outer")
        outer.action = lambda: published(SameHostTransport(), 6, [inner])
        published(SameHostTransport(), 6, [outer])
        assert [engine.version for engine in (inner, outer)] == [6, 6]

    def test_an_engine_that_is_listed_twice_is_refused(self) -> None:
        engine = Engine()
        with pytest.raises(SyncError, match="engine 0 and engine 2 are the same object"):
            published(SameHostTransport(), 6, [engine, Engine("b"), engine])
        assert engine.events == []

    def test_many_threads_leave_the_engine_on_the_newest_version(self) -> None:
        engine, refused = Engine(), []

        def publish(version: int) -> None:
            try:
                published(SameHostTransport(), version, [engine])
            except SyncError as error:
                refused.append((version, str(error)))

        threads = [threading.Thread(target=publish, args=(version,)) for version in (3, 8, 1, 6, 2, 7, 5, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert state(engine) == (8, [8.0] * 3, False, None)
        assert all("already holds version" in text for _, text in refused)

    def test_a_sync_that_waits_too_long_names_the_one_that_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exclusive, "WAIT_S", 0.0)
        engine, errors = self.Acting(), []

        def publish() -> None:
            with pytest.raises(SyncError) as raised:
                published(SameHostTransport(), 7, [engine])
            errors.append(str(raised.value))

        def wait_for_another_thread() -> None:
            thread = threading.Thread(target=publish)
            thread.start()
            thread.join()

        engine.action = wait_for_another_thread
        published(SameHostTransport(), 6, [engine])
        expected = "version 7 was not published: waited 0 s for version 6, which the thread MainThread is publishing"
        assert (errors, engine.version) == ([expected], 6)


class TestChecksums:
    def test_a_flipped_bit_is_detected(self) -> None:
        class Corrupted(Engine):
            def stage(self, weights: ports.Weights, version: int) -> Mapping[str, int]:
                broken = {name: tensor.clone() for name, tensor in weights.items()}
                broken["w"].view(torch.int32)[1] ^= 1 << 7
                return super().stage(broken, version)

        engines = [Engine("a"), Corrupted("b")]
        with pytest.raises(
            SyncError, match=r"engine 1 \(Corrupted\) does not hold the weights that were sent: 'w' has the check"
        ):
            published(SameHostTransport(), 4, engines)
        assert [state(engine)[:3] for engine in engines] == [OLD[:3]] * 2

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (None, "`stage` returned NoneType instead of a mapping from names to checksums"),
            ({}, "'w' was not acknowledged"),
        ],
    )
    def test_tensor_without_an_acknowledged_checksum_is_named(self, answer: object, message: str) -> None:
        class Silent(Engine):
            def stage(self, weights: ports.Weights, version: int) -> Mapping[str, int]:
                super().stage(weights, version)
                return answer

        with pytest.raises(SyncError, match=message):
            published(SameHostTransport(), 4, [Silent()])

    def test_weights_that_change_while_they_are_sent_are_detected(self) -> None:
        weights = weights_of(4)

        class Slow(Engine):
            def stage(self, bucket: ports.Weights, version: int) -> Mapping[str, int]:
                held = super().stage(bucket, version)
                weights["w"][0] += 1
                return held

        with pytest.raises(SyncError, match="'w' has the checksum"):
            SameHostTransport().publish(weights, 4, [Slow()])


class TestCanary:
    @pytest.mark.parametrize(
        ("found", "message"),
        [
            (np.zeros(5), r"shape \(5,\) for the canary, expected \(2,\)"),
            (np.full(2, np.nan), "does not use the weights that it confirmed"),
            (
                np.array([[-20.0, -20.0], [-20.0, -20.5]]),
                r"token 2 \(id 2\).* -20\.5, the learner's -20, a difference of",
            ),
        ],
    )
    def test_an_engine_that_fails_the_canary_is_refused(self, found: np.ndarray, message: str) -> None:
        class Odd(Engine):
            def logprobs(self, tokens: np.ndarray) -> np.ndarray:
                return found

        with pytest.raises(SyncError, match=message):
            published(SameHostTransport(), 4, [Odd()])

    def test_canary_error_within_the_limit_is_reported(self) -> None:
        class Rounded(Engine):
            def logprobs(self, tokens: np.ndarray) -> np.ndarray:
                return np.stack([super().logprobs(tokens), super().logprobs(tokens) + np.float32(5e-5)])

        assert published(SameHostTransport(), 4, [Rounded()])["weight_sync/canary_error"].value == pytest.approx(
            5e-5, rel=0.1
        )

    def test_large_scores_have_a_relative_limit(self) -> None:
        large = Canary(tokens=TOKENS, logprobs=np.array([-300.0, -1.0]), atol=1e-4)
        assert large.compare(np.array([-300.0009, -1.0]), "engine") == pytest.approx(9e-4)
        with pytest.raises(SyncError, match=r"-300\.0011, the learner's -300, .*; canary_atol allows 0\.001\."):
            large.compare(np.array([-300.0011, -1.0]), "engine")
        with pytest.raises(SyncError, match=r"token 2 .*; canary_atol allows 0\.0001\."):
            large.compare(np.array([-300.0009, -1.0002]), "engine")

    @pytest.mark.parametrize(("score", "has_diverged"), [(-350.0, True), (-np.inf, True), (-12.0, False)])
    def test_a_failure_names_divergence_if_scores_of_the_learner_have_exploded(
        self, score: float, has_diverged: bool
    ) -> None:
        with pytest.raises(SyncError) as caught:
            Canary(tokens=TOKENS, logprobs=np.array([score, -1.0]), atol=1e-4).compare(np.array([-9.0, -1.0]), "engine")
        assert ("training has probably diverged" in str(caught.value)) == has_diverged
        assert ("Lower optim.lr" in str(caught.value)) == has_diverged
        assert ("does not use the weights" in str(caught.value)) != has_diverged

    def test_equal_infinite_scores_pass_the_canary(self) -> None:
        scores = np.array([-np.inf, -1.0], np.float32)
        assert Canary(tokens=TOKENS, logprobs=scores, atol=0.0).compare(scores, "engine") == 0.0
        with pytest.raises(SyncError, match="a difference of inf"):
            Canary(tokens=TOKENS, logprobs=scores, atol=1.0).compare(np.array([-3.0, -1.0]), "engine")

    def test_weights_whose_scores_are_nan_are_not_published(self) -> None:
        with pytest.raises(SyncError, match="are NaN: these weights are not published"):
            Canary(tokens=TOKENS, logprobs=np.full(2, np.nan, np.float32), atol=1.0)


class TestCaches:
    """The cache is cleared at the flip, before version 2 answers its first request."""

    def test_caches_are_cleared_before_requests_resume(self) -> None:
        engine = Caching()
        published(SameHostTransport(), 1, [engine])
        assert engine.generate("x") == ("x", 1)
        published(SameHostTransport(), 2, [engine])
        assert engine.generate("x") == ("x", 2)
        last = engine.events[engine.events.index("a generate") :]
        assert last.index("a invalidate") < last.index("a resume")

    def test_stale_prefix_cache_fails_the_canary(self) -> None:
        engine = Caching(forgets=False)
        published(SameHostTransport(), 1, [engine])
        with pytest.raises(SyncError, match="does not use the weights that it confirmed"):
            published(SameHostTransport(), 2, [engine])
        assert engine.version == 1


@attrs.define(eq=False)
class Caching(Engine):
    """An engine that caches results by prompt, those of the canary included."""

    forgets: bool = True
    cache: dict[object, object] = attrs.field(factory=dict)

    def generate(self, prompt: str) -> tuple[str, int]:
        self.events.append("a generate")
        return self.cache.setdefault(prompt, (prompt, self.version))

    def logprobs(self, tokens: np.ndarray) -> np.ndarray:
        return self.cache.setdefault(tuple(tokens), super().logprobs(tokens))

    def flip(self) -> None:
        super().flip()
        if self.forgets:
            self.events.append("a invalidate")
            self.cache.clear()


class TestUnchangedWeights:
    BASE = {"w": torch.ones(3)}

    def publish(self, transport: SameHostTransport, version: int, adapter: float | None) -> None:
        trained = None if adapter is None else {"lora_a": torch.full((2,), adapter), "w": self.BASE["w"]}
        transport.publish(self.BASE, version, [Engine()], trained=trained, first=True)

    def test_sync_of_unchanged_weights_after_training_is_refused(self) -> None:
        transport = SameHostTransport()
        self.publish(transport, 0, 0.0)
        with pytest.raises(SyncError, match=r"training changed 1 of 1 tensors .* such as 'lora_a', but all 1 weights"):
            self.publish(transport, 1, 0.5)
        with pytest.raises(SyncError, match="training changed 1"):  # a failed sync does not count as published
            self.publish(transport, 1, 0.5)

    def test_unchanged_weights_without_training_are_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        transport = SameHostTransport()
        with caplog.at_level(logging.WARNING):
            for version in range(3):
                self.publish(transport, version, 0.5)
        assert [record.getMessage() for record in caplog.records] == [
            "version 1 contains no change: all weights equal those of the previous version"
        ]

    def test_changes_lost_in_a_cast_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        class Half(Engine):
            def spec(self) -> ports.Weights:
                return {"w": torch.empty(3, dtype=torch.bfloat16, device="meta")}

        transport = SameHostTransport()
        with caplog.at_level(logging.WARNING):
            for version, value in enumerate([1.0, 1.00001]):
                weights, trained = {"w": torch.full((3,), value)}, {"a": torch.tensor(value)}
                transport.publish(weights, version, [Half()], trained=trained, first=True)
        assert "the changes are lost in the cast" in caplog.text
