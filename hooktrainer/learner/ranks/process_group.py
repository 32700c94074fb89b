"""The process group of torch, over which ranks sum gradients and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch

# Default arguments of this module keep a group that exists when it is imported, as an optimizer does. Threads of a
# group that is kept outlive `leave`, and can abort the interpreter at its exit.
import torch.distributed.nn  # isort: skip
from torch import Tensor, distributed

from hooktrainer.errors import CollectiveError, RankError
from hooktrainer.learner.distributed import Communicator

T = TypeVar("T")


def join(rank: int, size: int, *, local_rank: int, timeout_s: float) -> Communicator:
    """Meet all ranks at `MASTER_ADDR` and `MASTER_PORT`. Tensors on the CPU use gloo, those on a GPU NCCL.

    A collective that takes longer than `timeout_s` fails. Raises `RankError` if a rank does not come.
    """
    on_gpu = torch.cuda.is_available() and distributed.is_nccl_available()
    if on_gpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            timeout=timedelta(seconds=timeout_s),
            rank=rank,
            world_size=size,
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
