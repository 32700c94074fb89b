"""What a class can be told in YAML, for people: every option with its type, default and documentation."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from hooktrainer.config.fields import default_of, init_fields, option_name, type_name
from hooktrainer.config.short_forms import Kind
from hooktrainer.errors import ConfigError
from hooktrainer.plugin import Plugin, option_fields
from hooktrainer.run import registry


@attrs.frozen
class Option:
    """One option of a class."""

    name: str
    type: str
    default: str
    """As source; empty if a value is required."""
    doc: str
    """The string literal under the field; empty if there is none."""


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a plugin, a component or a part of the configuration."""
    docs = field_docs(cls)
    return tuple(
        Option(option_name(field), type_name(field.type), _default(field), docs.get(field.name, ""))
        for field in _fields(cls)
    )


def option_paths(named: Iterable[tuple[str, Kind, str]]) -> dict[str, str]:
    """The full path of every option of some named classes, by its key; a name that leads nowhere has none."""
    paths: dict[str, str] = {}
    for address, kind, use in named:
        with suppress(ConfigError):
            for field in _fields(registry.resolve(kind, use)):
                paths.setdefault(option_name(field), f"{address}.{option_name(field)}")
    return paths


def summary(cls: type) -> str:
    """The first paragraph of a class's own documentation, on one line."""
    return " ".join(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\n")[0].split())


def field_docs(cls: type) -> Mapping[str, str]:
    """The string literal under each field, read from the source along the MRO; the most derived one counts."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # built in, or typed at a prompt
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


def _fields(cls: type) -> Sequence[attrs.Attribute[Any]]:
    return option_fields(cls) if issubclass(cls, Plugin) else init_fields(cls)


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return ""
    default = default_of(field)
    return "..." if default is attrs.NOTHING else repr(default)
