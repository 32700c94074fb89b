"""`run.json` in the run directory: when, where and from which code a run was started, and how it ended."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import attrs

from hooktrainer._util.files import replace_all
from hooktrainer.ports import Result

_LOG: Final = logging.getLogger("hooktrainer")
FILE: Final = "run.json"
_PACKAGES: Final = ("hooktrainer", "torch", "transformers", "numpy")
_GIT_S: Final = 2.0


@attrs.frozen(kw_only=True)
class Start:
    """One start of a run; a resume is another start."""

    time: str
    """ISO 8601, in UTC."""
    host: str
    pid: int
    process_started: int | None
    """Start time of the process in units of the kernel. A later process with its pid has another one."""
    command: Sequence[str]
    directory: str
    """The working directory."""
    git_commit: str | None
    """Commit of the repository in the working directory, with `+` if files differ from it; None without one."""
    packages: Mapping[str, str]
    """Versions of packages, by name."""
    resumed_from: int = 0
    """The last complete step of the checkpoint that was resumed; 0 for a new run."""
    end: Mapping[str, Any] | None = None
    """`time` and the fields of `Result`; None while the run is active, or if it was killed."""

    @classmethod
    def now(cls) -> Self:
        """Describe a run that starts in this process."""
        return cls(
            time=_now(),
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=_process_started(os.getpid()),
            command=list(sys.orig_argv),
            directory=os.getcwd(),  # noqa: PTH109 (a string)
            git_commit=_git_commit(),
            packages=dict(_versions()),
        )

    @property
    def is_local(self) -> bool:
        """Whether the run was started on this machine."""
        return self.host == socket.gethostname()

    @property
    def state(self) -> str:
        """`running`, `killed` or the status of the end; `unknown` for a run of another machine without an end."""
        if self.end is not None:
            return str(self.end["status"])
        if not self.is_local:
            return "unknown"
        return "running" if self.is_active else "killed"

    @property
    def is_active(self) -> bool:
        """Whether the process of the run is alive, on this machine."""
        started = _process_started(self.pid)
        return self.end is None and self.is_local and _exists(self.pid) and started == self.process_started


@attrs.frozen(kw_only=True)
class RunRecord:
    """The starts of a run, oldest first."""

    total_steps: int | None
    """None if the run lasts until its data ends."""
    starts: Sequence[Start]
    id: str = attrs.field(factory=lambda: uuid4().hex[:8])
    """Identifies the run in trackers, over all of its starts."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the file of a run directory. Raises `OSError`, or `ValueError` if it is no such file."""
        try:
            content = json.loads((directory / FILE).read_text(encoding="utf-8"))
            starts = [Start(**start) for start in content["starts"]]
            starts[-1]  # at least one
            known = {"id": content["id"]} if "id" in content else {}
            return cls(total_steps=content["total_steps"], starts=starts, **known)
        except (TypeError, LookupError) as error:
            raise ValueError(f"{directory / FILE} is not the record of a run: {error}") from None

    def text(self) -> str:
        """Return the text of the file."""
        return json.dumps({"format": 1, **attrs.asdict(self)}, indent=2) + "\n"


def started(directory: Path, total_steps: int | None, *, resumes: bool) -> RunRecord:
    """Return the record of a run that starts; the id and the earlier starts of a run that resumes are kept."""
    record = RunRecord(total_steps=total_steps, starts=[Start.now()])
    if resumes:
        with suppress(OSError, ValueError):  # a run of another version, or a file that a user changed
            earlier = RunRecord.read(directory)
            return attrs.evolve(record, starts=[*earlier.starts, *record.starts], id=earlier.id)
    return record


def record_resume(directory: Path, step: int) -> None:
    """Record the step that the run resumed from, if any. A file that cannot be written is only a warning."""
    if step:
        _change(directory, "the resumed step", resumed_from=step)


def record_end(directory: Path, result: Result | None) -> None:
    """Record how the run ended. A file that cannot be written is only a warning."""
    if result is not None:
        _change(directory, "the end of the run", end={"time": _now(), **attrs.asdict(result)})


def _change(directory: Path, what: str, **fields: Any) -> None:
    try:
        record = RunRecord.read(directory)
        *earlier, last = record.starts
        if not last.is_active or last.pid != os.getpid():
            return  # of an earlier run, whose files a refused resume did not replace
        text = attrs.evolve(record, starts=[*earlier, attrs.evolve(last, **fields)]).text()
        replace_all(directory, {FILE: text.encode("utf-8")})
    except (OSError, ValueError) as error:
        _LOG.warning("%s is not recorded in %s: %s", what, directory / FILE, error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _process_started(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # not Linux, or no such process
        return None
    state, *others = status.rpartition(")")[2].split()
    return None if state == "Z" else int(others[18])  # a process that ended, and that its parent did not wait for


def _git_commit() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S)  # noqa: S603 (fixed)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that takes long
        return None


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found
