"""Rewards run in a bounded pool of threads: each has a timeout, and one that hangs holds up no other."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from helpers.rollouts import PATIENCE_S
from hooktrainer.errors import RolloutError
from hooktrainer.rollout import score_pool
from hooktrainer.rollout.pool_call import Resolve
from hooktrainer.rollout.score_options import ScoreOptions
from hooktrainer.rollout.score_pool import ScorePool, TooManyHangsError

Make = Callable[..., ScorePool]


@pytest.fixture
def proceed() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def make(proceed: threading.Event) -> Iterator[Make]:
    """Return a function that makes a pool; the pools are closed after the test."""
    pools: list[ScorePool] = []

    def made(**options: Any) -> ScorePool:
        pools.append(ScorePool(ScoreOptions(**options)))
        return pools[-1]

    yield made
    proceed.set()
    for pool in pools:
        pool.close()
        assert not pool.join(PATIENCE_S)


def submit(pool: ScorePool, call: Callable[[], Any], name: str = "the call") -> Future[Any]:
    return pool.submit(lambda resolve: resolve(call()), lambda: name)


def error_of(future: Future[Any]) -> BaseException:
    error = future.exception(PATIENCE_S)
    assert error is not None
    return error


def test_results_belong_to_their_calls(make: Make) -> None:
    pool = make(workers=4)
    futures = [submit(pool, lambda number=number: number) for number in range(200)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(200))


def test_one_thread_runs_calls_in_the_order_of_submission(make: Make) -> None:
    pool, order = make(workers=1), list[int]()
    for future in [submit(pool, lambda number=number: order.append(number)) for number in range(100)]:
        future.result(PATIENCE_S)
    assert order == list(range(100))


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_workers_calls_run_at_once(workers: int, make: Make, proceed: threading.Event) -> None:
    before = set(threading.enumerate())
    pool, entered, counter = make(workers=workers), threading.Semaphore(0), itertools.count()

    def call() -> None:
        next(counter)
        entered.release()
        proceed.wait()

    futures = [submit(pool, call) for _ in range(5 * workers)]
    for _ in range(workers):
        assert entered.acquire(timeout=PATIENCE_S)
    assert sum(pool.thread_of(future) is not None for future in futures) == workers
    started = set(threading.enumerate()) - before
    assert len([thread for thread in started if re.fullmatch(r"reward-\d+", thread.name)]) == workers
    proceed.set()
    for future in futures:
        future.result(PATIENCE_S)
    assert next(counter) == 5 * workers


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_is_that_of_its_call_only(error: BaseException, is_async: bool, make: Make) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    def call() -> Any:
        if is_async:
            return later()
        raise error

    pool = make(workers=1, timeout_s=60)
    failed, other = submit(pool, call), submit(pool, lambda: asyncio.sleep(0, "fine"))
    assert other.result(PATIENCE_S) == "fine"
    assert type(error_of(failed)) in {type(error), CancelledError}


def hang_here(proceed: threading.Event) -> None:
    proceed.wait()


def test_a_call_that_hangs_fails_with_its_name_and_place_and_its_thread_is_replaced(
    make: Make, proceed: threading.Event
) -> None:
    pool = make(workers=1, timeout_s=0.2)
    hung, next_one = submit(pool, lambda: hang_here(proceed), "the judge of 'x'"), submit(pool, lambda: 1)

    error = error_of(hung)
    place = r"it is in hang_here \(.*test_score_pool\.py, line \d+\)"
    assert re.fullmatch(rf"the judge of 'x' did not return within reward\.timeout_s = 0\.2 s; {place}", str(error))
    assert isinstance(error.__cause__, TimeoutError)
    assert next_one.result(PATIENCE_S) == 1


def test_the_timeout_starts_when_a_call_runs_and_not_when_it_waits(make: Make) -> None:
    """Three calls of half the timeout wait for one thread."""
    pool = make(workers=1, timeout_s=1.0)
    futures = [submit(pool, lambda: threading.Event().wait(0.5)) for _ in range(4)]
    assert [future.result(PATIENCE_S) for future in futures] == [False] * 4


def test_the_late_result_of_a_call_that_timed_out_is_discarded(make: Make, proceed: threading.Event) -> None:
    pool = make(workers=1, timeout_s=0.1)
    hung = submit(pool, proceed.wait)
    error = error_of(hung)
    (thread,) = pool._abandoned
    proceed.set()
    thread.join(PATIENCE_S)
    assert error_of(hung) is error
    assert not pool._abandoned


def test_too_many_threads_that_hang_are_an_error_of_its_own(
    make: Make, proceed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_pool, "MAX_ABANDONED", 2)
    pool = make(workers=1, timeout_s=0.05)
    errors = [error_of(submit(pool, proceed.wait)) for _ in range(3)]
    assert [type(error) for error in errors] == [RolloutError, RolloutError, TooManyHangsError]
    assert str(errors[-1]).startswith("3 threads hang in rewards, more than 2; the last: the call did not return")


def test_without_a_timeout_a_call_may_take_any_time(make: Make, proceed: threading.Event) -> None:
    pool = make(workers=2, timeout_s=None)
    slow = submit(pool, proceed.wait)
    assert submit(pool, lambda: asyncio.sleep(0, 5)).result(PATIENCE_S) == 5
    assert not [thread for thread in threading.enumerate() if thread.name == "reward-timeouts"]
    proceed.set()
    assert slow.result(PATIENCE_S) is True


def test_a_description_that_raises_fails_its_call(make: Make, proceed: threading.Event) -> None:
    def describe() -> str:
        raise LookupError("no text")

    pool = make(workers=1, timeout_s=0.1)
    hung = pool.submit(lambda _: proceed.wait(), describe)
    assert repr(error_of(hung)) == "LookupError('no text')"
    assert submit(pool, lambda: 1).result(PATIENCE_S) == 1


class TestCoroutines:
    def test_all_run_in_one_event_loop_at_once(self, make: Make) -> None:
        pool, loops = make(workers=3), set[asyncio.AbstractEventLoop]()
        barrier = asyncio.Barrier(3)

        async def call() -> int:
            loops.add(asyncio.get_running_loop())
            return await barrier.wait()

        futures = [submit(pool, call) for _ in range(3)]
        assert sorted(future.result(PATIENCE_S) for future in futures) == [0, 1, 2]
        assert len(loops) == 1

    def test_one_that_hangs_is_cancelled_at_the_timeout(self, make: Make) -> None:
        pool, ended = make(workers=1, timeout_s=0.1), threading.Event()

        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        error = error_of(submit(pool, hangs))
        assert str(error) == "the call did not return within reward.timeout_s = 0.1 s"
        assert isinstance(error.__cause__, TimeoutError)
        assert ended.is_set()
        assert submit(pool, lambda: asyncio.sleep(0, 1)).result(PATIENCE_S) == 1

    def test_the_error_of_one_that_is_cancelled_is_part_of_the_message(self, make: Make) -> None:
        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise RolloutError("the reward 'judge' was cancelled") from None

        error = error_of(submit(make(timeout_s=0.1), hangs))
        assert str(error).endswith("timeout_s = 0.1 s; the reward 'judge' was cancelled")

    def test_one_that_blocks_the_event_loop_is_named_and_the_loop_is_replaced(
        self, make: Make, proceed: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hooktrainer.rollout.event_loop.CANCEL_S", 0.1)

        async def blocks() -> None:
            hang_here(proceed)

        pool = make(workers=1, timeout_s=0.1)
        error = error_of(submit(pool, blocks))
        assert re.search(r"; a coroutine blocks the event loop in hang_here \(.*, line \d+\)$", str(error))
        assert isinstance(error.__cause__, TimeoutError)
        assert submit(pool, lambda: asyncio.sleep(0, 1)).result(PATIENCE_S) == 1


class TestClose:
    def test_idle_threads_have_ended_after_join(self, make: Make) -> None:
        before = set(threading.enumerate())
        pool, together = make(workers=40, timeout_s=60.0), threading.Barrier(40)
        for future in [submit(pool, together.wait) for _ in range(40)]:
            future.result(PATIENCE_S)
        pool.close()
        assert not pool.join(PATIENCE_S)
        assert set(threading.enumerate()) <= before

    def test_a_thread_whose_call_was_cancelled_has_ended_after_join(self, make: Make) -> None:
        before = set(threading.enumerate())
        pool, entered, leave = make(workers=40, timeout_s=60.0), threading.Barrier(41), threading.Event()

        def call() -> None:
            entered.wait()
            leave.wait()

        for _ in range(40):
            submit(pool, call)
        entered.wait(PATIENCE_S)
        pool.close()
        leave.set()
        assert not pool.join(PATIENCE_S)
        assert set(threading.enumerate()) <= before

    def test_calls_that_run_and_wait_are_cancelled(self, make: Make, proceed: threading.Event) -> None:
        pool, entered = make(workers=1), threading.Event()

        def call() -> None:
            entered.set()
            proceed.wait()

        futures = [submit(pool, call) for _ in range(3)]
        assert entered.wait(PATIENCE_S)
        pool.close()
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(PATIENCE_S)
        assert [thread.name for thread in pool.join(0.0)] == ["reward-0"]
        proceed.set()
        assert not pool.join(PATIENCE_S)

    def test_coroutines_are_cancelled(self, make: Make) -> None:
        pool, entered = make(workers=1), threading.Event()

        async def hangs() -> None:
            entered.set()
            await asyncio.Event().wait()

        future = submit(pool, hangs)
        assert entered.wait(PATIENCE_S)
        pool.close()
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)
        assert not pool.join(PATIENCE_S)

    def test_later_calls_are_cancelled_until_the_pool_is_opened(self, make: Make) -> None:
        pool = make()
        pool.close()
        assert submit(pool, lambda: 1).cancelled()
        pool.open()
        assert submit(pool, lambda: 1).result(PATIENCE_S) == 1

    def test_a_pool_that_ran_nothing_has_no_thread(self, make: Make) -> None:
        make().close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward-")]


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1.5}, {"timeout_s": 0}, {"timeout_s": "soon"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ScoreOptions(**options)


def test_resolve_returns_plain_values(make: Make) -> None:
    def call(resolve: Resolve) -> Any:
        return resolve(3), resolve([1]), resolve(None)

    assert make().submit(call, lambda: "").result(PATIENCE_S) == (3, [1], None)
