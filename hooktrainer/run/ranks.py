"""A run on several ranks, started by `torchrun` or by rank 0: rank 0 runs everything, the others follow its learner.

The environment of each process says which rank it is. All ranks read the same configuration, which is compared before
the first step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import attrs

from hooktrainer._util.exit_limit import skip_finalization
from hooktrainer._util.forks import HANDLED, exit_now
from hooktrainer._util.signals import Interrupts
from hooktrainer.errors import ConfigError, Fault, message_of
from hooktrainer.learner.options import LearnerOptions
from hooktrainer.run.composition import Composition
from hooktrainer.run.loading import dump

if TYPE_CHECKING:
    from hooktrainer.learner.distributed import Communicator
    from hooktrainer.learner.policy_gradient import PolicyGradientLearner
    from hooktrainer.learner.ranks.followers import Followers
    from hooktrainer.learner.ranks.leading import LeadingLearner
    from hooktrainer.trainer import Trainer


@attrs.frozen(kw_only=True)
class Place:
    """The place of this process among the ranks."""

    rank: int
    size: int
    """Number of ranks."""
    local_rank: int
    """Number of the rank on its machine, which is the number of its GPU."""
    host: str
    """The machine of rank 0."""
    check: Callable[[], None] = attrs.field(default=lambda: None, repr=False, eq=False)
    """Raises `RankError` if a rank has ended that this process has started."""

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Self | None:
        """Return the place that `torchrun` sets in the environment; None for a single process."""
        given = {name: variables[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name in variables}
        if given.get("WORLD_SIZE", "1") == "1" or "RANK" not in given:
            return None
        try:
            rank, size, host = int(given["RANK"]), int(given["WORLD_SIZE"]), given["MASTER_ADDR"]
            local_rank = int(variables.get("LOCAL_RANK", rank))
        except (KeyError, ValueError):
            found = ", ".join(f"{name}={value}" for name, value in given.items())
            text = f"the environment describes a rank with {found}, but not completely; a run on several ranks is"
            raise ConfigError(f"{text} started by torchrun --nproc-per-node N -m hooktrainer fit CONFIG") from None
        return cls(rank=rank, size=size, local_rank=local_rank, host=host)

    def require(self, ranks: int) -> None:
        """Raise `ConfigError` unless `learner.ranks` is the number of ranks, or left out."""
        if ranks not in (1, self.size):
            fault = f"{ranks}, but this run was started on {self.size} ranks, as by torchrun"
            raise ConfigError([Fault("learner.ranks", f"{fault}; leave it out, or set it to {self.size}")])


@attrs.frozen
class Refusal:
    """The message of a rank that cannot read its configuration, in place of the configuration."""

    reason: str


@attrs.frozen(eq=False)
class Leader:
    """The connection of rank 0 to all ranks."""

    communicator: Communicator
    followers: Followers

    def leading(self, own: PolicyGradientLearner) -> LeadingLearner:
        """Return the learner that trains on all ranks, with `own` on this one."""
        from hooktrainer.learner.ranks.leading import LeadingLearner

        return LeadingLearner(own, self.followers)

    def attend(self, trainer: Trainer) -> None:
        """End the run when a follower ends, and let all of them leave at its end."""
        self.followers.on_failure(trainer.fail)
        trainer.at_start(self.followers.check)
        trainer.at_signal(self.followers.missing)
        trainer.at_end(self.followers.close)


@contextmanager
def leading(composition: Composition, place: Place, interrupts: Interrupts) -> Iterator[Leader]:
    """Meet the other ranks as rank 0. At the end of the block they leave.

    Raises `ConfigError` if the configuration of another rank differs, and `RankError` if a rank does not come.
    """
    from hooktrainer.learner.ranks import process_group
    from hooktrainer.learner.ranks.channel import Listener
    from hooktrainer.learner.ranks.followers import Followers

    skip_finalization()
    limit_s = composition.config.learner.timeout_s
    communicator = process_group.join(0, place.size, local_rank=place.local_rank, timeout_s=limit_s, check=place.check)
    listener = Listener.at(place.host)
    process_group.share(listener.address)
    arrived = listener.connections(place.size, limit_s)
    followers = Followers({rank: connection for rank, (connection, _) in arrived.items()}, timeout_s=limit_s)
    try:
        _require_same(_text(composition), {rank: message for rank, (_, message) in arrived.items()})
        yield Leader(communicator, followers)
    except (KeyboardInterrupt, SystemExit):
        if not followers.closed and (failure := followers.missing()) is not None:
            interrupts.note(failure, caused_signal=True)
            raise failure from None
        raise
    finally:
        followers.close()
    process_group.leave()


def follow(
    composition: Composition, place: Place, build: Callable[[Composition, Communicator], PolicyGradientLearner]
) -> NoReturn:
    """Build a learner and follow the commands of rank 0, until the process exits."""
    from hooktrainer.learner.ranks import process_group
    from hooktrainer.learner.ranks.channel import Address, connect
    from hooktrainer.learner.ranks.follower import Follower

    limit_s = composition.config.learner.timeout_s
    communicator = process_group.join(place.rank, place.size, local_rank=place.local_rank, timeout_s=limit_s)
    address = process_group.receive(Address)
    connection = connect(address, place.rank, _text(composition), limit_s)
    Follower(place.rank, connection).run(partial(build, composition, communicator))


def refuse(error: ConfigError, place: Place) -> NoReturn:
    """Report to rank 0 why this rank cannot read the configuration, and exit.

    Rank 0 has most often failed in the same way: it alone shows why, and a signal ends this rank.
    """
    from hooktrainer.learner.ranks import process_group
    from hooktrainer.learner.ranks.channel import Address, connect, receive

    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    limit_s = LearnerOptions().timeout_s
    process_group.join(place.rank, place.size, local_rank=place.local_rank, timeout_s=limit_s)
    connection = connect(process_group.receive(Address), place.rank, Refusal(message_of(error)), limit_s)
    with suppress(OSError, EOFError):
        receive(connection)  # rank 0 lets all ranks leave
    exit_now(2)


def _text(composition: Composition) -> str:
    """Return the configuration without the section of the run directory, which rank 0 alone writes."""
    config = composition.config
    return dump(attrs.evolve(config, run=attrs.evolve(config.run, name="run", dir=Path(), resume="off")))


def _require_same(own: str, others: Mapping[int, str | Refusal]) -> None:
    for rank, text in sorted(others.items()):
        if isinstance(text, Refusal):
            raise ConfigError(f"rank {rank} cannot read the configuration, which rank 0 can: {text.reason}")
        if text != own:
            lines = list(unified_diff(own.splitlines(), text.splitlines(), "rank 0", f"rank {rank}", n=0, lineterm=""))
            changed = "; ".join(line for line in lines[3:6] if not line.startswith("@@"))
            raise ConfigError(
                f"the configuration of rank {rank} differs from that of rank 0: {changed}. Start every rank with the "
                "same files, overrides and environment variables"
            )
