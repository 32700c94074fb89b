"""The file of samples: a few answers of each step, one strict JSON object each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer._util import files
from hooktrainer._util.streams import write_stdout
from hooktrainer.errors import RecordError, shortened
from hooktrainer.sinks.appending import append, set_aside
from hooktrainer.sinks.stored_rows import StoredRow

_LOG: Final = logging.getLogger("hooktrainer")
_SEPARATORS: Final = {ord(letter): f"\\u{ord(letter):04x}" for letter in "\x85\u2028\u2029"}
_SHOWN: Final = 400
"""Characters of a text on the console."""


@attrs.define
class SampleFile:
    """Implementation of `hooktrainer.ports.SampleLog`: `samples.jsonl`. Without a directory, nothing is written."""

    directory: Path | None
    _last_step: int = attrs.field(default=0, init=False)
    """The step that was written last, which an interrupt may repeat."""

    @property
    def path(self) -> Path | None:
        """Return the path of the file."""
        return None if self.directory is None else self.directory / "samples.jsonl"

    def open(self) -> None:
        """Create the file; keep its lines. Raises `RecordError` if lines cannot be written."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise RecordError(f"samples cannot be written to {self.path}: {error}. Move or remove that path") from None
        self._last_step = 0

    def write(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append the lines of a step and sync them to disk."""
        if self.path is None or step == self._last_step or not lines:
            return
        before, text = self._last_step, "".join(f"{_dumped({'step': step, **line})}\n" for line in lines)
        self._last_step = step  # set before writing: interrupted lines must not be written twice
        try:
            append(self.path, text.encode())
        except OSError as error:
            self._last_step = before
            raise RecordError(f"samples cannot be written to {self.path}: {error}") from None
        except BaseException:
            self._last_step = before
            raise

    def show(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Print the lines to standard output."""
        write_stdout("".join(f"{line}\n" for sample in lines for line in _shown(step, sample)))

    def rewind(self, step: int) -> None:
        """Delete all lines after `step`. Lines that are no samples are deleted too, and a copy of the file is kept."""
        if self.path is None or not self.path.exists():
            return
        try:
            data = self.path.read_bytes()
            kept, unreadable = _lines_up_to(step, data)
            if unreadable:
                aside = set_aside(self.path, data)
                text = "%s: unreadable lines were deleted: line %s; the earlier file is kept as %s"
                _LOG.warning(text, self.path, ", ".join(map(str, unreadable)), aside.name)
            if kept != data:
                files.replace(self.path, kept)
        except OSError as error:
            text = f"the samples after step {step} cannot be removed from {self.path}: {error}. Free some space"
            raise RecordError(f"{text}, or make the file writable") from None


def _lines_up_to(step: int, data: bytes) -> tuple[bytes, list[int]]:
    """Return the lines of steps up to `step`, and the numbers of the lines that cannot be read."""
    kept, unreadable = list[bytes](), list[int]()
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.endswith(b"\n"):
            break  # a kill tore it
        try:
            row = StoredRow.of(line)
        except ValueError:
            unreadable.append(number)
        else:
            kept += [row.text] if row.step <= step else []
    return b"".join(kept), unreadable


def _dumped(line: Mapping[str, Any]) -> str:
    """Return strict JSON in one line, also for readers that split at every line separator of Unicode."""
    text = json.dumps(line, allow_nan=False, ensure_ascii=False).translate(_SEPARATORS)
    return text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair


def _shown(step: int, sample: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sample as lines: its figures, then its prompt and its turns."""
    figures = [f"score {sample['score']:g}"] if sample["score"] is not None else ["score NaN"]
    figures += [f"{name} {value:g}" for name, value in sample["metrics"].items() if value is not None]
    cut = " (cut off)" if sample["truncated"] else ""
    figures.append(f"{sample['length']} tokens{cut}")
    if versions := dict.fromkeys(sample["versions"]):
        figures.append(f"version{'s' if len(versions) > 1 else ''} {'-'.join(map(str, versions))}")
    yield f"sample of step {step}, {sample['kind']} ({', '.join(sample['chosen'])}): {', '.join(figures)}"
    yield from _block("prompt", sample["prompt"])
    for turn in sample.get("turns") or [{"from": "answer", "text": sample["answer"]}]:
        yield from _block(turn["from"], turn["text"])


def _block(name: str, text: str) -> Iterator[str]:
    """Yield a text behind its name, aligned. Characters that move the cursor of a terminal are escaped."""
    for line in shortened(text, _SHOWN).split("\n"):
        yield f"  {name:<11}  {''.join(_plain(letter) for letter in line)}".rstrip()
        name = ""


def _plain(letter: str) -> str:
    return letter if letter.isprintable() else repr(letter)[1:-1]
