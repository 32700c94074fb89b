"""A parsed report."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs

from hooktrainer.run.history import RunHistory
from hooktrainer.run.report.page import page_of


@attrs.define
class Page(HTMLParser):
    """A parsed page."""

    text: str
    tags: list[tuple[str, dict[str, str | None]]] = attrs.field(factory=list)
    pieces: list[tuple[str, str]] = attrs.field(factory=list)
    """Text with the tag that it is in."""
    _open: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in {"meta", "input"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.pieces.append((self._open[-1] if self._open else "", text))

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws."""
        return dict(json.loads(next(text for tag, text in self.pieces if tag == "script" and text.startswith("{"))))

    @property
    def said(self) -> str:
        """The text that is shown, with single blanks."""
        shown = (text for tag, text in self.pieces if tag not in {"script", "style"})
        return " ".join(" ".join(shown).split())

    def curve(self, key: str) -> dict[str, Any]:
        """The first curve of a metric, with its steps."""
        data = self.data
        found = next(curve for curve in data["curves"] if curve["key"] == key)
        return {**found, "steps": data["axes"][found["x"]]}


def report(*directories: Path) -> Page:
    """Return the page of runs."""
    return Page(page_of([RunHistory.read(directory) for directory in directories]))
