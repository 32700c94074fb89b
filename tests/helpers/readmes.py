"""Parts of README files that tests run: blocks of code, comments that control them, links and headings.

The comments are invisible when the page is shown, and stand directly above a block:

* `<!-- run: KEY=VALUE ... -->` runs the `fit` commands of the block with these overrides. Without it, `fit` is checked
  as `plan`, and its output is not compared.
* `<!-- exit: 2 -->` expects this exit code of every command of the block.
* `<!-- file: NAME -->` writes the block to a file of that name; lines of JSON become rows of a Parquet file.

A block of Python or YAML whose first line is `# NAME.py` or `# NAME.yaml` is also written to a file of that name.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
_FOLDERS = ("hooktrainer", "plugins")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$", re.DOTALL | re.MULTILINE
)
_COMMENT = re.compile(r"<!-- (run|exit|file): (.*?) -->")
_FILE_NAME = re.compile(r"# ([\w/-]+\.(?:py|yaml))\n")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w./-])(?:configs|examples|hooktrainer|plugins|tests)/[\w./-]*[\w/]")


@attrs.frozen
class Block:
    """A fenced block of a README."""

    path: Path
    language: str
    text: str
    line: int
    """Line of its first row in the file, counted from 1."""
    overrides: tuple[str, ...] | None = None
    """Overrides for `fit`; None to check it as `plan`."""
    exit_code: int = 0
    file: str | None = None
    """Name of the file that the comment above asks for."""

    def __str__(self) -> str:
        return f"{named(self.path)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """Name of the file that the comment above, or the first line, asks for."""
        if self.file is not None:
            return self.file
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None


@attrs.frozen
class Command:
    """A command of a console block, and the output that the README shows."""

    arguments: tuple[str, ...]
    shown: tuple[str, ...]


def pages() -> list[Path]:
    """Return every README of the project, the one at the top first, and the pages in `docs`."""
    readmes = sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("README.md"))
    return [ROOT / "README.md", *readmes, *sorted((ROOT / "docs").glob("*.md"))]


def named(path: Path) -> str:
    """Return the path relative to the project, for names of tests."""
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> list[Block]:
    """Return the blocks of a README in these languages, in order."""
    text, found, end = path.read_text(), [], 0
    for match in _FENCE.finditer(text):
        comments = dict(_COMMENT.findall(text[_end_of_text(text, end, match.start()) : match.start()]))
        end = match.end()
        if match["language"] in languages:
            overrides = tuple(shlex.split(comments["run"])) if "run" in comments else None
            line = text.count("\n", 0, match.start("text")) + 1
            options = (overrides, int(comments.get("exit", 0)), comments.get("file"))
            found.append(Block(path, match["language"], match["text"], line, *options))
    return found


def _end_of_text(text: str, start: int, end: int) -> int:
    """Return the place after which there are only comments and blank lines."""
    between = text[start:end]
    comments = re.search(r"(?:\s*<!--(?:(?!-->).)*-->)*\s*\Z", between, re.DOTALL)
    return start + (comments.start() if comments else len(between))


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block; each starts with `$ `."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not first.strip(), f"{block}: output before the first command"
    found = []
    for part in parts:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        found.append(Command(tuple(shlex.split(command, comments=True)), tuple(shown.rstrip("\n").splitlines())))
    return found


def missing_line(shown: Sequence[str], output: str, *, numbers: bool = True) -> str | None:
    """Return the first shown line that the output lacks, in order; None if there is none.

    `...` on a line of its own skips lines, and within a line any text. Without `numbers`, all numbers are equal.
    """
    lines = iter([_plain(line, numbers) for line in output.splitlines()])
    for line in shown:
        if line.strip() in {"", "..."}:
            continue
        pattern = ".*".join(map(re.escape, _plain(line, numbers).split("...")))
        if not any(re.fullmatch(pattern, found) for found in lines):
            return line
    return None


def _plain(line: str, numbers: bool) -> str:
    return line.rstrip() if numbers else re.sub(r"\d+(?:\.\d+)*", "0", line.rstrip())


def links(path: Path) -> list[str]:
    """Return the links of a page to files and headings of the project, without those in blocks."""
    found = _LINK.findall(_prose(path))
    return sorted({link for link in found if not re.match(r"\w+:", link)})


def paths(path: Path) -> list[str]:
    """Return the paths of the project that a page names in code or in text."""
    return sorted(set(_PATH.findall(_prose(path))) - {link.partition("#")[0] for link in links(path)})


def anchors(path: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", _prose(path), flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = next(number for number in range(99) if (f"{anchor}-{number}" if number else anchor) not in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def _prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text())


def defined_tests(block: Block) -> Iterator[str]:
    """Yield the names of the test functions that a block of Python defines."""
    for statement in ast.parse(block.text).body:
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            yield statement.name


def fill(folder: Path, page: Path) -> None:
    """Copy what a README may refer to: configurations, examples, and the files that its own blocks show."""
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, folder)
    for block in blocks(page, "python", "yaml", "json"):
        if block.file_name:
            path = folder / block.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                rows = [json.loads(line) for line in block.text.splitlines()]
                pq.write_table(pa.Table.from_pylist(rows), path)
            else:
                path.write_text(block.text)
