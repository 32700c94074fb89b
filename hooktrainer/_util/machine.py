"""Limits of the machine, the control group and the process: bytes of memory, and threads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_GROUPS: Final = "sys/fs/cgroup"


def memory_limit(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use: the memory of the machine, or a lower limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += _limits_of_group(root, "memory", ("memory.max", "memory.limit_in_bytes"))
    limits += _resource_limit(resource.RLIMIT_AS)
    return min(limits)


def thread_limit(root: Path = _ROOT) -> int | None:
    """Return the number of threads and processes that this process may start; None if there is no limit."""
    limits = [*_limits_of_group(root, "pids", ("pids.max",)), *_resource_limit(resource.RLIMIT_NPROC)]
    for name in ("threads-max", "pid_max"):
        limits += _number(root / "proc/sys/kernel" / name)
    return min(limits, default=None)


def _resource_limit(kind: int) -> Iterator[int]:
    soft, _ = resource.getrlimit(kind)
    if soft != resource.RLIM_INFINITY:
        yield soft


def _limits_of_group(root: Path, controller: str, files: tuple[str, ...]) -> Iterator[int]:
    """Yield the limits of the control group of this process, and of the groups that contain it."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / _GROUPS / controllers if controllers else root / _GROUPS
            inner = top / path.lstrip("/")
            for place in (inner, *inner.parents):
                if place.is_relative_to(top):
                    for name in files:
                        yield from _number(place / name)


def _number(path: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):  # "max" means that there is no limit
        yield int(path.read_text(encoding="utf-8"))
