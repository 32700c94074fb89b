"""Read and write YAML with the scalars of YAML 1.2, and with bounds on size and depth.

PyYAML reads the scalars of YAML 1.1, where `off` is a boolean, 010 is 8 and 1:30 is 90. Here these are text, which an
option of another type refuses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import yaml  # type: ignore[import-untyped]

MAX_CHARACTERS: Final = 1_000_000
"""Characters of a file, and of all text after interpolation."""
MAX_VALUES: Final = 20_000
"""Values of a configuration, where every alias and interpolation counts as a copy."""
MAX_DEPTH: Final = 50
"""Mappings and lists inside each other."""
BOM: Final = "\N{ZERO WIDTH NO-BREAK SPACE}"
_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {  # longer integers are text: Python refuses to print more than 4,300 digits
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9]{0,39})|0x[0-9a-fA-F]{1,32}",
    "float": r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "merge": "<<",
}


class YamlError(Exception):
    """Text that is not valid YAML, or is too large; the message starts with the line."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[Any, Any] = {}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the signature of PyYAML)
        return True

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> Any:
        """Escape the line breaks of Unicode, which a reader would replace by blanks."""
        return super().represent_scalar(tag, value, '"' if re.search("[\x85\u2028\u2029]", value) else style)


for _name, _pattern in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), None)


@attrs.define
class _Open:
    """A mapping or list that the scan is in."""

    anchor: str | None
    values: int = 1
    depth: int = 1
    keys: set[str] | None = None
    """Keys of a mapping so far; None for a list."""
    at_key: bool = True

    def add(self, values: int, depth: int) -> None:
        """Count a value inside of this one."""
        self.values, self.depth, self.at_key = self.values + values, max(self.depth, depth + 1), not self.at_key


def read_yaml(text: str) -> Any:
    """Return the data of a YAML document. Raises `YamlError`."""
    text = text.lstrip(BOM)
    if BOM in text:
        line = text[: text.index(BOM)].count("\n") + 1
        rule = "there is a byte order mark (U+FEFF) here, which is invisible; it may only be the first character of"
        raise YamlError(f"line {line}: {rule} the file, so remove it")
    try:
        _scan(text)
        return _copied(yaml.load(text, Loader=_Loader))  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).partition("\n")[0]
        raise YamlError(f"{_place(mark) if mark else ''}not valid YAML: {problem}{_hint(text, mark)}") from error


def read_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar: a number, a boolean, None, or the text as it is."""
    kind = next((name for name, pattern in _SCALARS.items() if name != "merge" and re.fullmatch(pattern, text)), None)
    return yaml.load(str(text), Loader=_Loader) if kind else text  # noqa: S506


def write_yaml(data: Mapping[str, object]) -> str:
    """Return plain data as YAML that reads back the same."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def names_of_yaml(text: str) -> str | None:
    """Return the first anchor, alias or tag in a YAML text; None if it has none."""
    for event in yaml.parse(text, Loader=_Loader):
        for sign, name in (("&", getattr(event, "anchor", None)), ("", getattr(event, "tag", None))):
            if name is not None:
                return f"{'*' if isinstance(event, yaml.AliasEvent) else sign}{name}"
    return None


def _copied(value: Any) -> Any:
    """Return data in which every alias is a copy."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _scan(text: str) -> None:
    """Raise `YamlError` for what must not be constructed: too large, too deep, endless, tagged, or with a key twice."""
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"a configuration has at most {MAX_CHARACTERS:,} characters, found {len(text):,}")
    if _brackets(text) > MAX_DEPTH * 10:  # far more than the scan allows, since it is quadratic in open brackets
        raise YamlError(f"mappings and lists are at most {MAX_DEPTH} levels deep")
    anchored: dict[str, tuple[int, int]] = {}
    opened, documents = [_Open(None)], 0
    for event in yaml.parse(text, Loader=_Loader):
        fault = None
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            fault = "expected one document, found a second one; pass several files instead" if documents > 1 else None
        elif isinstance(event, yaml.CollectionStartEvent):
            fault = _fault_of_tag(event.tag)
            opened.append(_Open(event.anchor, keys=set() if isinstance(event, yaml.MappingStartEvent) else None))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = opened.pop()
            opened[-1].add(done.values, done.depth)
            anchored[str(done.anchor)] = done.values, done.depth
        elif isinstance(event, yaml.AliasEvent):
            endless = any(item.anchor == event.anchor for item in opened)
            fault = f"the alias *{event.anchor} is inside of the value that it refers to" if endless else None
            opened[-1].add(*anchored.get(event.anchor, (1, 0)))
        elif isinstance(event, yaml.ScalarEvent):
            fault = _fault_of_tag(event.tag) or _fault_of_key(opened[-1], event.value)
            anchored[str(event.anchor)] = 1, 0
            opened[-1].add(1, 0)
        fault = fault or _fault_of_size(opened)
        if fault:
            raise YamlError(f"{_place(event.start_mark)}{fault}")


def _brackets(text: str) -> int:
    """Return the largest number of brackets that are open at once, also counting those in text and comments."""
    signs = re.findall(r"[\[{\]}]", text)
    return max(itertools.accumulate((1 if sign in "[{" else -1 for sign in signs), initial=0))


def _fault_of_tag(tag: str | None) -> str | None:
    known = tag in (None, f"{_TAG}str")
    return None if known else f"the tag {tag} is not supported; put text in quotes, and leave other tags out"


def _fault_of_key(inside: _Open, key: str) -> str | None:
    if inside.keys is None or not inside.at_key:
        return None
    if key in inside.keys:
        return f"not valid YAML: found duplicate key {key}"
    inside.keys.add(key)
    return None


def _fault_of_size(opened: list[_Open]) -> str | None:
    if sum(item.values for item in opened) > MAX_VALUES:
        return f"a configuration has at most {MAX_VALUES:,} values, and aliases count as copies"
    if len(opened) + opened[-1].depth > MAX_DEPTH:
        return f"mappings and lists are at most {MAX_DEPTH} levels deep"
    return None


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: "


def _hint(text: str, mark: Any) -> str:
    """Return the end of a sentence that shows how to write two things that YAML users often write wrong."""
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line:
        return "; indent with spaces, not with tabs"
    if re.search(r"[{\[](?:.*[\s,:{\[])?\$\{", line):
        return "; inside of { } and [ ], put an interpolation in quotes, as in {seed: '${oc.env:SEED}'}"
    return ""
