"""Check where a run resumes from, and warn about settings that differ from those of the earlier run."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from hooktrainer.checkpoint.store import has_checkpoint
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.run.settings import settings_of

_LOG: Final = logging.getLogger("hooktrainer")
_MAX_SHOWN: Final = 8
_EXPECTED: Final = ("run.", "trainer.total_steps", "trainer.total_epochs")
"""Settings that a resume usually changes."""


def check_resume(resume: Literal["off", "auto"] | Path) -> None:
    """Raise `ConfigError` if `resume` is a path without a checkpoint; the checkpoint plugin reads it later."""
    if isinstance(resume, Path) and not _has_checkpoint(resume):
        found = "no checkpoint" if resume.exists() else "nothing"
        text = f"there is {found} at {resume}; expected off, auto, or the path of a checkpoint or of a run directory"
        hint = did_you_mean(resume.name, ("off", "auto"))
        raise ConfigError([Fault("run.resume", f"{text}.{hint}")])


def _has_checkpoint(path: Path) -> bool:
    try:
        return has_checkpoint(path)
    except OSError as error:
        raise ConfigError([Fault("run.resume", f"{path} cannot be read: {error.strerror}")]) from None


def previous_config(directory: Path | None, resume: Literal["auto"] | Path) -> str | None:
    """Return the `config.yaml` of the run to resume; None if there is none."""
    places = [directory] if resume == "auto" else [resume, resume.parent, resume.parent.parent]
    for place in places:
        with suppress(OSError):  # there is none, or it cannot be read
            if place is not None:
                return (place / "config.yaml").read_text(encoding="utf-8", errors="replace")
    return None


def warn_of_changes(before: str | None, now: str) -> None:
    """Warn with the settings that differ between two configurations."""
    if before is None:
        return
    try:
        old, new = settings_of(before), settings_of(now)
    except ValueError:  # edited by hand; the run replaces the file
        return
    changes = [
        f"{key} {old.get(key, '(none)')} -> {new.get(key, '(none)')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, "(none)") != new.get(key, "(none)") and not key.startswith(_EXPECTED)
    ]
    if changes:
        more = f", and {len(changes) - _MAX_SHOWN} more" if len(changes) > _MAX_SHOWN else ""
        _LOG.warning("the run resumes with changed settings: %s%s", ", ".join(changes[:_MAX_SHOWN]), more)
