"""The parts of a learner on several ranks: shares, connections, and the view that rank 0 has of its followers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.learners import build, group, learner, trajectory
from hooktrainer.errors import CollectiveError, HookTrainerError, RankError
from hooktrainer.learner.ranks.channel import Address, Listener, connect, receive, send
from hooktrainer.learner.ranks.followers import Followers, Report
from hooktrainer.learner.ranks.leading import LeadingLearner
from hooktrainer.learner.ranks.shares import split_by_tokens, without_rows
from hooktrainer.learner.ranks.weights import require_weights, weights_checksum


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 5))
def test_shares_have_each_group_once_in_order_and_differ_by_at_most_one_group(lengths: list[int], ranks: int) -> None:
    groups = [group([2], trajectory([3] * length, 1.0), number=number) for number, length in enumerate(lengths)]
    shares = split_by_tokens(groups, ranks)

    numbers = [[one.number for one in share] for share in shares]
    assert len(shares) == ranks
    assert sorted(number for share in numbers for number in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in numbers)
    loads = [sum(1 + lengths[number] for number in share) for share in numbers]
    assert max(loads) - min(loads) <= max([0, *(1 + length for length in lengths)])


def test_group_for_another_rank_keeps_all_that_a_learner_reads() -> None:
    before = group([2, 3], trajectory([4, 5], 0.5), number=7)
    after = without_rows(before)
    assert (after.number, after.prompt.tokens.tolist(), after.prompt.example.row) == (7, [2, 3], {})
    assert after.trajectories[0].tokens.tolist() == [4, 5]
    assert after.trajectories[0].score == 0.5


class TestConnections:
    def test_followers_connect_and_strangers_are_dropped(self) -> None:
        listener = Listener.at("127.0.0.1")
        address = listener.address
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(listener.connections, 3, 60.0)
            with socket.create_connection((address.host, address.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(RankError, match="rank 1 cannot connect to rank 0 at 127.0.0.1"):
                connect(Address(address.host, address.port, b"another secret"), 1, "config", 60.0)
            ends = {rank: connect(address, rank, f"config {rank}", 60.0) for rank in (2, 1)}
            connections = found.result(60)

        assert {rank: text for rank, (_, text) in connections.items()} == {1: "config 1", 2: "config 2"}
        tensor = torch.arange(3)
        send(connections[2][0], {"tensor": tensor})
        assert torch.equal(receive(ends[2])["tensor"], tensor)
        ends[1].close()
        with pytest.raises(EOFError):
            receive(connections[1][0])
        for connection in (ends[2], *(connection for connection, _ in connections.values())):
            connection.close()

    def test_rank_that_does_not_come_is_named(self) -> None:
        with pytest.raises(RankError, match="rank 1, 2 did not connect to rank 0 at 127.0.0.1 within 0.01 s"):
            Listener.at("127.0.0.1").connections(3, 0.01)


class Ends:
    """The followers of a test, and their ends of the connections."""

    def __init__(self, ranks: int) -> None:
        pairs = {rank: socket.socketpair() for rank in range(1, ranks)}
        self.ends = {rank: Connection(pair[1].detach()) for rank, pair in pairs.items()}
        self.followers = Followers({rank: Connection(pair[0].detach()) for rank, pair in pairs.items()}, timeout_s=60)

    def end(self, rank: int, report: Report | None = None) -> None:
        if report is not None:
            send(self.ends[rank], report)
        self.ends[rank].close()


@pytest.fixture
def three() -> Iterator[Ends]:
    made = Ends(3)
    yield made
    for end in made.ends.values():
        end.close()
    made.followers.close()


def fail_in_a_collective(followers: Followers) -> None:
    with followers.collective():
        raise CollectiveError("connection closed")


class TestFollowers:
    def test_command_reaches_every_follower_with_its_own_arguments(self, three: Ends) -> None:
        three.followers.call_each("update", [("first",), ("second",)])
        three.followers.set("kl_coeff", 0.5)
        for rank, own in ((1, "first"), (2, "second")):
            assert receive(three.ends[rank]) == ("call", "update", (own,))
            assert receive(three.ends[rank]) == ("set", "kl_coeff", 0.5)

    def test_follower_that_ends_is_reported_once_and_refuses_commands(self, three: Ends) -> None:
        found: list[HookTrainerError] = []
        reported = threading.Event()
        three.followers.on_failure(lambda error: (found.append(error), reported.set()))
        three.end(2)

        assert reported.wait(60)
        assert str(found[0]).startswith("rank 2 ended without a message")
        with pytest.raises(RankError) as raised:
            three.followers.call("start_step", 1)
        assert raised.value is found[0]

    def test_error_that_made_a_collective_fail_comes_before_its_consequence(self, three: Ends) -> None:
        consequence = Report(text="a collective failed", is_consequence=True)
        three.end(2, consequence)
        three.end(1, Report(text="ValueError: boom", traceback="Traceback ..."))
        with pytest.raises(RankError, match="rank 1 failed: ValueError: boom") as raised:
            fail_in_a_collective(three.followers)
        assert raised.value.__notes__ == ["Traceback ..."]

    def test_consequence_alone_is_the_error_after_a_moment(self, three: Ends) -> None:
        three.end(2, Report(text="a collective failed", is_consequence=True))
        with pytest.raises(RankError, match="rank 2 failed: a collective failed"):
            fail_in_a_collective(three.followers)

    def test_collective_that_times_out_is_the_error_itself(self, three: Ends) -> None:
        with pytest.raises(CollectiveError, match="connection closed"):
            fail_in_a_collective(three.followers)

    def test_followers_that_answer_are_not_missing(self, three: Ends) -> None:
        with ThreadPoolExecutor(1) as pool:
            missing = pool.submit(three.followers.missing)
            for end in three.ends.values():
                send(end, receive(end)[1])
            assert missing.result(60) is None

    def test_follower_that_has_ended_is_missing(self, three: Ends) -> None:
        three.end(1)
        assert str(three.followers.missing()).startswith("rank 1 ended without a message")

    def test_followers_leave_on_command(self) -> None:
        made = Ends(2)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(made.followers.close)
            assert receive(made.ends[1]) == ("end",)
            made.ends[1].close()
            closing.result(60)
        assert made.followers.closed


def test_state_and_settings_of_the_learner_are_set_on_all_ranks() -> None:
    made, own = Ends(2), learner(build(), kl_coeff=0.1)
    leading = LeadingLearner(own, made.followers)
    leading.kl_coeff = 0.25
    leading.skips_nonfinite = True
    leading.load_state_dict(leading.state_dict())
    end = made.ends[1]

    kind, name, (checksums,) = receive(end)
    assert (kind, name, checksums) == ("call", "require_weights", weights_checksum(own))
    assert [receive(end), receive(end)] == [("set", "kl_coeff", 0.25), ("set", "skips_nonfinite", True)]
    kind, name, (state,) = receive(end)
    assert (kind, name, state["kl_coeff"]) == ("call", "load_state_dict", 0.25)
    torch.testing.assert_close(state["weights"], own.state_dict()["weights"])
    assert (own.kl_coeff, own.skips_nonfinite) == (0.25, True)
    end.close()
    made.followers.close()


def test_weights_that_differ_from_those_of_rank_0_are_refused() -> None:
    own, other = learner(build()), learner(build())
    require_weights(other, weights_checksum(own))
    with torch.no_grad():
        next(iter(other.weights().values())).add_(1.0)
    with pytest.raises(RankError, match="differ from those of rank 0 in 1 tensors, first policy"):
        require_weights(other, weights_checksum(own))
