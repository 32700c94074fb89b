"""The text of the project, and the phrases that it does without.

Text is every docstring, comment and string of Python files, every comment of YAML files, and Markdown without its
code. Code in backticks and placeholders of f-strings are not text.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md")
FOLDERS = ("hooktrainer", "plugins", "examples", "configs", "docs")
LONGEST_SENTENCE = 30

BANNED = {
    re.compile(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), re.IGNORECASE): advice
    for phrase, advice in {
        r"who(?:so)?ever": "name the component",
        r"what(?:so)?ever": "use 'any', or name it",
        r"of one's own": "write 'custom', or 'your own'",
        r"in work": "write 'in flight' or 'running'",
        r"(?:take|takes|took|taken|taking) back": "write 'restore'",
        r"put(?:s|ting)? (?:\w+ ){0,3}back": "write 'restore'",
        r"(?:go|goes|gone|going|went) on(?! top)": "write 'resume' or 'continue'",
        r"from now on": "name the event after which it holds",
        r"(?:is|are|was|were) said": "name who reports it, and where",
        r"(?:say|says|said) (?:so|what)": "write 'report', 'return' or 'raise'",
        r"an? side": "write 'per process' or name the process",
        r"beside (?:it|them)": "write 'with', or 'in the same folder'",
        r"so far as": "write 'if' or 'where'",
        r"hardly": "write 'probably not'",
        r"(?:no|some|every) ?body": "name the component",
        r"everyone": "name the components",
        r"by itself": "write 'alone' or 'automatically'",
        r"pulls nowhere": "write 'has zero gradient'",
        r"as of one moment": "write 'a consistent snapshot'",
        r"look(?:s|ed|ing)? at": "write 'check' or 'inspect'",
        r"(?:give|gives|gave|given|giving) (?:\w+ )?up": "write 'time out' or 'abandon'",
        r"mends?": "write 'repair' or 'fix'",
        r"tells?": "write 'report' or 'set'",
        r"owes?": "write 'must provide'",
        r"wants?": "write 'requires' or 'expects'",
        r"comes? of": "write 'results from'",
        r"(?:begin|begins|began|begun) anew": "write 'start a new run'",
        r"what (?:is|was|it|are|were|they)": "name the thing",
        r"stands(?! (?:in|for|still)\b)": "write 'is complete' or 'remains'",
        r"meant": "name what is expected",
    }.items()
}
"""Patterns, and what to write instead."""

ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""Pairs of a file and a phrase, in lower case, that is a technical term there."""


@attrs.frozen
class Passage:
    """Consecutive text of one file, from strings that are joined or comments that follow each other."""

    path: Path
    lines: tuple[tuple[int, str], ...]
    """The text by line."""

    @property
    def text(self) -> str:
        """Return the text, with a space for each end of a line."""
        return " ".join(text for _, text in self.lines)

    def place(self, offset: int) -> str:
        """Return `file:line` of an offset in the text."""
        for line, text in self.lines:
            offset -= len(text) + 1
            if offset < 0:
                return f"{self.path.relative_to(ROOT)}:{line}"
        raise IndexError(offset)


def files() -> list[Path]:
    """Return the files whose text is checked."""
    found = [ROOT / page for page in PAGES]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".md"}]
    return sorted(path for path in found if path.exists() and "runs" not in path.parts)


def passages(path: Path) -> Iterator[Passage]:
    """Yield the text of a file."""
    match path.suffix:
        case ".py":
            yield from _of_python(path)
        case ".yaml":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if comment := re.search(r"(?:^|\s)#(.*)", line):
                    yield Passage(path, ((number, _plain(comment[1])),))
        case _:
            yield from _of_markdown(path)


def _of_python(path: Path) -> Iterator[Passage]:
    kind, lines = 0, []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in {tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
            continue
        if token.type != kind and lines:
            yield Passage(path, tuple(lines))
            lines = []
        kind = token.type
        if kind == tokenize.COMMENT:
            lines.append((token.start[0], _plain(token.string.lstrip("# "))))
        elif kind == tokenize.STRING:
            text = re.sub(r"^[a-zA-Z]*(\"\"\"|\"|'''|')(.*)\1$", r"\2", token.string, flags=re.DOTALL)
            lines += [(token.start[0] + place, line) for place, line in enumerate(_plain(text).splitlines())]


def _of_markdown(path: Path) -> Iterator[Passage]:
    text = re.sub(r"^( *)```.*?^\1``` *$", _blank, path.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines: list[tuple[int, str]] = []
    for number, line in enumerate([*_plain(text).splitlines(), ""], 1):
        if line.strip():
            lines.append((number, line.strip()))
        elif lines:
            yield Passage(path, tuple(lines))
            lines = []


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match[0]) if match[0].startswith(("`", "{")) else re.sub(r"[^\n]", "", match[0])


def _plain(text: str) -> str:
    """Return the text with code in backticks and placeholders blanked."""
    return re.sub(r"`[^`\n]*`|\{[^{}\n]*\}", _blank, text)


def banned(path: Path) -> list[str]:
    """Return `file:line: 'phrase': advice` for every banned phrase of a file."""
    found = []
    for passage in passages(path):
        for pattern, advice in BANNED.items():
            for match in pattern.finditer(passage.text):
                phrase = " ".join(match[0].split())
                if (str(path.relative_to(ROOT)), phrase.lower()) not in ALLOWED:
                    found.append(f"{passage.place(match.start())}: {phrase!r}: {advice}")
    return found


@attrs.frozen
class Documented:
    """A public module, class, function, method or field, and its docstring."""

    place: str
    name: str
    doc: str | None


def documented(path: Path) -> Iterator[Documented]:
    """Yield what is public in a module, and the fields that have a docstring."""
    tree = ast.parse(path.read_text())
    where = path.relative_to(ROOT)
    yield Documented(f"{where}:1", path.stem, ast.get_docstring(tree))
    yield from _members(where, tree)


def _members(where: Path, node: ast.Module | ast.ClassDef) -> Iterator[Documented]:
    for statement, following in itertools.zip_longest(node.body, node.body[1:]):
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if not name.startswith("_"):
                if not _is_overload(statement):
                    yield Documented(f"{where}:{statement.lineno}", name, ast.get_docstring(statement))
                if isinstance(statement, ast.ClassDef):
                    yield from _members(where, statement)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(doc))):
                        yield Documented(f"{where}:{following.lineno}", name, doc)


def _is_overload(statement: ast.stmt) -> bool:
    """Whether a function has no docstring of its own: overloads, setters and overridden methods."""
    named = {ast.unparse(decorator).rpartition(".")[2] for decorator in getattr(statement, "decorator_list", ())}
    return bool(named & {"overload", "override", "setter"})


def long_sentences(found: Documented, limit: int = LONGEST_SENTENCE) -> Iterator[str]:
    """Yield the sentences of a docstring that have more words than the limit; items of a list count alone."""
    prose = "\n\n".join(part for part in re.split(r"\n\s*\n", found.doc or "") if not re.match(r"\s{4}", part))
    for sentence in re.split(r"(?<=[.?!:])\s+(?=[A-Z`*\d-])|\n\s*\n|\n\s*(?:[-*+x]|\d+\.|\|)\s", prose):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > limit:
            yield f"{found.place}: {len(words)} words: {' '.join(words)}"
