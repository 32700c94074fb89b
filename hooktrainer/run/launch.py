"""Start the other ranks of a learner on this machine, as `torchrun` does. This process is rank 0.

Rank 0 notices the end of every other rank, and they notice its end, so that no further process has to watch them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker

from hooktrainer._util.forks import HANDLED
from hooktrainer.errors import RankError
from hooktrainer.rollout.process.orphans import SET_SIGNAL_OF_PARENT_DEATH, WorkerProcess, signals_blocked
from hooktrainer.run.ranks import Place

_HOST = "127.0.0.1"


@contextmanager
def launched(size: int, follow: Callable[[], int]) -> Iterator[Place]:
    """Start ranks 1 to `size` - 1, each of which calls `follow` in a new process. Kill those left after the block.

    Within the block the environment is that of rank 0 under `torchrun`.
    """
    import torch
    from torch._C._distributed_c10d import TCPStore  # where torch.distributed has it from

    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank makes another store
    }
    limited = {} if "OMP_NUM_THREADS" in os.environ else _share_cores(size)
    if limited:
        torch.set_num_threads(int(limited["OMP_NUM_THREADS"]))
    processes: list[WorkerProcess] = []
    with _environment({**shared, "RANK": "0", "LOCAL_RANK": "0"}):
        try:
            resource_tracker.ensure_running()  # here, since it unblocks signals when it starts
            for rank in range(1, size):
                variables = {**shared, **limited, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                target = partial(_run, os.getcwd(), variables, follow)  # noqa: PTH109 (where user code may have gone)
                processes.append(WorkerProcess(target=target, name=f"rank-{rank}"))
                with signals_blocked():
                    processes[-1].start()
            check = partial(_require_running, processes)
            yield Place(rank=0, size=size, local_rank=0, host=_HOST, check=check)
        finally:
            for process in processes:  # those that were told to leave have left
                if process.pid is not None:
                    process.kill()
                    process.join()
            del store


def _share_cores(size: int) -> dict[str, str]:
    """Return the variable that gives each rank an equal number of threads, since torch gives all cores to each."""
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size))}


def _require_running(processes: Sequence[WorkerProcess]) -> None:
    """Raise `RankError` if a rank has ended."""
    for process in processes:
        if (code := process.exitcode) is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise RankError(f"{process.name.replace('-', ' ')} {how} before it met rank 0")


def _run(directory: str, variables: Mapping[str, str], follow: Callable[[], int]) -> None:
    """Be a rank: the main function of its process, which ends with rank 0."""
    with suppress(AttributeError, OSError):  # another system than Linux, where a rank notices when it connects
        ctypes.CDLL(None).prctl(SET_SIGNAL_OF_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    os.environ.update(variables)
    os.chdir(directory)
    sys.exit(follow())


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them after the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
