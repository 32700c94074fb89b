"""What a run that goes on does otherwise than before, in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import yaml  # type: ignore[import-untyped]

_LOG: Final = logging.getLogger("hooktrainer")
_SHOWN: Final = 8
_EXPECTED: Final = ("run.", "trainer.total_steps", "trainer.total_epochs")
"""What a resume is there to change."""


def config_before(directory: Path | None, resume: Literal["auto"] | Path) -> str | None:
    """The configuration that a run was last made with, as far as it is known."""
    places = [directory] if resume == "auto" else [resume, resume.parent, resume.parent.parent]
    for place in places:
        if place is not None and (path := place / "config.yaml").is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    return None


def say_changes(before: str | None, now: str) -> None:
    """Name the settings that differ, since a resume is no proof that they may."""
    if before is None:
        return
    try:
        old, new = (dict(_flat(yaml.safe_load(text))) for text in (before, now))
    except yaml.YAMLError:  # somebody's edit; it is replaced
        return
    changes = [
        f"{key} {old.get(key, '(none)')} -> {new.get(key, '(none)')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, "(none)") != new.get(key, "(none)") and not key.startswith(_EXPECTED)
    ]
    if changes:
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        _LOG.warning("it goes on with other settings than before: %s%s", ", ".join(changes[:_SHOWN]), more)


def _flat(value: Any, address: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its address; a plugin's by its name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{address}.{key}" if address else str(key))
    elif isinstance(value, list) and all(isinstance(item, dict) and "use" in item for item in value):
        for item in value:
            yield from _flat(item, f"{address}.{item.get('name') or item['use']}")
    else:
        yield address, value
