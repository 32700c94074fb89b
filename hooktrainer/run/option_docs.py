"""Document the names that YAML accepts: a summary of a class or function, and the options of a class."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hooktrainer.config.fields import DEFAULT, default_of, field_type, option_name, type_name
from hooktrainer.run.registry import settable_fields


@attrs.frozen
class Option:
    """One option of a class."""

    name: str
    type: str
    default: str
    """As source code or in words; empty if a value is required."""
    doc: str
    """The string literal under the field; empty if there is none."""


def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options of a plugin, a component or a section."""
    docs = field_docs(cls)
    return tuple(
        Option(option_name(field), _type(cls, field), _default(field), docs.get(field.name, ""))
        for field in settable_fields(cls)
    )


def summary(cls: type) -> str:
    """Return the first paragraph of a class's own docstring, on one line."""
    return _first_paragraph(cls.__dict__.get("__doc__"))


def function_summary(target: str) -> str:
    """Return the first paragraph of the docstring of `package.module:function`, without importing the module."""
    module, _, name = target.partition(":")
    spec = importlib.util.find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin is not None else ""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return _first_paragraph(ast.get_docstring(functions[0]) if functions else None)


def _first_paragraph(doc: str | None) -> str:
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())


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


def _type(cls: type, field: attrs.Attribute[Any]) -> str:
    """Return the type as it is written in the source, or the choices of an alias of `Literal`."""
    expected = field_type(cls, field)
    return type_name(expected if typing.get_origin(expected) is typing.Literal else field.type)


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return str(field.metadata.get(DEFAULT, ""))
    default = default_of(field)
    if isinstance(default, Path) and default.is_relative_to(Path.cwd()):
        return repr(str(default.relative_to(Path.cwd())))
    return "..." if default is attrs.NOTHING else repr(default)
