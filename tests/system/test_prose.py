"""The project is written in plain technical English: no banned phrase, no long sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import prose
from helpers.prose import ROOT, Documented

NOT_YET: tuple[str, ...] = ()
"""Files and folders that do not pass yet."""


def is_checked(path: Path) -> bool:
    return not any(path.is_relative_to(ROOT / name) for name in NOT_YET)


FILES = [path for path in prose.files() if is_checked(path)]
MODULES = [path for path in FILES if path.suffix == ".py"]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_text_has_no_banned_phrase(path: Path) -> None:
    found = prose.banned(path)

    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_public_members_have_docstrings_of_short_sentences(path: Path) -> None:
    public = list(prose.documented(path))

    found = [f"{member.place}: {member.name} has no docstring" for member in public if not member.doc]
    found += [sentence for member in public for sentence in prose.long_sentences(member)]

    assert not found, "\n".join(["", *found])


def test_files_excluded_from_the_check_exist() -> None:
    if not (ROOT / "hooktrainer").exists():
        pytest.skip("only the tests are here")
    assert [name for name in NOT_YET if not (ROOT / name).exists()] == []


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    return tmp_path / "page.py"


def test_phrases_are_found_across_lines_strings_and_comments(page: Path) -> None:
    page.write_text(
        '''"""Restore what
was there."""

# Nothing is done from
# now on.
x = f"the {whatever} and `whatever` is "  "hardly used"
y = whatever
'''
    )

    assert [found.partition(": write")[0].partition(": name")[0] for found in prose.banned(page)] == [
        "page.py:1: 'what was'",
        "page.py:4: 'from now on'",
        "page.py:6: 'hardly'",
    ]


def test_code_in_markdown_and_yaml_is_not_text(page: Path) -> None:
    markdown, configuration = page.with_suffix(".md"), page.with_suffix(".yaml")
    markdown.write_text("Text\n\n```python\nwhoever = 1\n```\n\nIt wants\n`whoever`.\n")
    configuration.write_text("whoever: 1  # for whoever\n")

    assert [found.partition(":")[2].partition(": ")[0] for found in prose.banned(markdown)] == ["7"]
    assert len(prose.banned(configuration)) == 1


@pytest.mark.parametrize(
    "text", ["It stands for a group.", "The limit stands still.", "See what follows.", "On top of it.", "Go online."]
)
def test_technical_uses_are_allowed(text: str, page: Path) -> None:
    page.write_text(f'"""{text}"""\n')

    assert prose.banned(page) == []


def test_public_members_and_fields_are_found(page: Path) -> None:
    page.write_text(
        '''"""A module."""

LIMIT = 1
"""A limit."""

class Public:
    field: int = 1
    """A field."""

    def method(self): ...
    def _private(self): ...

def _private(): ...
'''
    )

    assert [(member.name, member.doc) for member in prose.documented(page)] == [
        ("page", "A module."),
        ("LIMIT", "A limit."),
        ("Public", None),
        ("field", "A field."),
        ("method", None),
    ]


def test_words_of_a_sentence_are_counted() -> None:
    doc = "One two three. Four five\nsix seven.\n\n- eight nine\n- ten\n\n    a drawing of many words, not counted\n"

    assert [*prose.long_sentences(Documented("page.py:1", "x", doc), limit=3)] == [
        "page.py:1: 4 words: Four five six seven."
    ]
