"""Document the options of a class: each with its type, default and docstring."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hooktrainer.config.fields import default_of, option_name, type_name
from hooktrainer.run.registry import settable_fields


@attrs.frozen
class Option:
    """One option of a class."""

    name: str
    type: str
    default: str
    """As source code; empty if a value is required."""
    doc: str
    """The string literal under the field; empty if there is none."""


def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options of a plugin, a component or a section."""
    docs = field_docs(cls)
    return tuple(
        Option(option_name(field), type_name(field.type), _default(field), docs.get(field.name, ""))
        for field in settable_fields(cls)
    )


def summary(cls: type) -> str:
    """Return the first paragraph of a class's own docstring, on one line."""
    return " ".join(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\n")[0].split())


def field_docs(cls: type) -> Mapping[str, str]:
    """Return the string literal under each field, read from the source; that of the most derived class wins."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # written in C, or defined in an interactive session
        return {}
    body = ast.parse(source).body[0]
    statements = body.body if isinstance(body, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(statements)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return ""
    default = default_of(field)
    if isinstance(default, Path) and default.is_relative_to(Path.cwd()):
        return repr(str(default.relative_to(Path.cwd())))
    return "..." if default is attrs.NOTHING else repr(default)
