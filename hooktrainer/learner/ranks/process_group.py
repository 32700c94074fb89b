"""The process group of torch, over which ranks sum gradients and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic, sleep
from typing import Final, TypeVar

import torch

# Default arguments of this module keep a group that exists when it is imported, as an optimizer does. Threads of a
# group that is kept outlive `leave`, and can abort the interpreter at its exit.
import torch.distributed.nn  # isort: skip
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from hooktrainer.errors import CollectiveError, RankError
from hooktrainer.learner.distributed import Communicator

T = TypeVar("T")
_CHECK_S: Final = 0.02
"""Seconds between two looks for ranks that have come."""


def join(
    rank: int, size: int, *, local_rank: int, timeout_s: float, check: Callable[[], None] = lambda: None
) -> Communicator:
    """Meet all ranks at `MASTER_ADDR` and `MASTER_PORT`. Tensors on the CPU use gloo, those on a GPU NCCL.

    Rank 0 calls `check` while it waits. A collective that takes longer than `timeout_s` fails. Raises `RankError` if a
    rank does not come.
    """
    on_gpu = torch.cuda.is_available() and distributed.is_nccl_available()
    if on_gpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    limit = timedelta(seconds=timeout_s)
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
        store.set_timeout(limit)
        store.set(_arrival(rank), "")
        if rank == 0:
            _wait_for_all(store, size, timeout_s, check)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=limit, rank=rank, world_size=size, store=store
        )
    except (RuntimeError, ValueError) as error:  # those of torch are RuntimeErrors
        raise RankError(f"rank {rank} of {size} could not join the process group: {error}") from error
    return Communicator(sum=_sum, rank=rank, size=size)


def leave() -> None:
    """Destroy the process group."""
    distributed.destroy_process_group()


def share(value: object) -> None:
    """Send an object from rank 0 to all other ranks."""
    with _explained():
        distributed.broadcast_object_list([value], src=0)


def receive(kind: type[T]) -> T:
    """Return the object that rank 0 sends."""
    box: list[object] = [None]
    with _explained():
        distributed.broadcast_object_list(box, src=0)
    assert isinstance(box[0], kind)
    return box[0]


def _wait_for_all(store: Store, size: int, timeout_s: float, check: Callable[[], None]) -> None:
    """Wait here rather than in native code, so that signals are handled, and the ranks that do not come are named."""
    deadline = monotonic() + timeout_s
    missing = list(range(1, size))
    while missing := [rank for rank in missing if not store.check([_arrival(rank)])]:
        check()
        if monotonic() > deadline:
            raise RankError(f"rank {', '.join(map(str, missing))} of {size} did not come within {timeout_s:g} s")
        sleep(_CHECK_S)


def _arrival(rank: int) -> str:
    return f"hooktrainer/rank{rank}"


def _sum(tensor: Tensor) -> Tensor:
    summed = tensor.clone()
    with _explained():
        distributed.all_reduce(summed)
    return summed


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        text = "a collective of the ranks failed: another rank ended, or took longer than learner.timeout_s"
        raise CollectiveError(f"{text} ({error})") from None
