"""Resolve `${section.key}` and `${oc.env:NAME}` in plain data: each value once, with bounds on size and chains.

The grammar is OmegaConf's. Its own resolution is not used: it evaluates a value again for every reference to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import attrs
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor

from hooktrainer.config.faults import Faults, first_line, shown
from hooktrainer.config.scalars import INVALID, EnvironmentText, Unread, holds
from hooktrainer.config.yaml_text import MAX_CHARACTERS, MAX_DEPTH
from hooktrainer.errors import did_you_mean

Keys: TypeAlias = tuple[Any, ...]
"""Keys and indices from the top level to a value."""
MAX_CHAIN: Final = 20
"""References that follow each other."""
_VALUE: Final = 50
"""Characters that a value counts as, besides its text."""
_ENVIRONMENT: Final = "oc.env"
_FORMS: Final = "write ${section.key} or ${oc.env:NAME}; in plain text, write \\\\${ for ${"


def resolved(data: Mapping[Any, Any], faults: Faults) -> dict[Any, Any]:
    """Return a copy of the data with interpolations replaced; a value that cannot be resolved is a fault and `INVALID`.

    A reference to a value with a fault adds no fault of its own.
    """
    found: dict[Any, Any] = _Resolution(data, faults).value(())
    return found


def escaped(value: Any) -> Any:
    """Return data in which `${` is plain text."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escaped(item) for item in value]
    return value


class _RefusedError(Exception):
    """The message of a fault; empty if it is known already."""


@attrs.frozen
class _Whole:
    """A value that cannot be a part of text."""

    value: Any

    def __str__(self) -> str:
        if holds(self.value, Unread):
            raise _RefusedError
        raise _RefusedError(f"expected text or a number within this text, found {shown(self.value)}")


@attrs.define
class _Resolution:
    """The values of one configuration, resolved on demand."""

    data: Mapping[Any, Any]
    faults: Faults
    done: dict[Keys, Any] = attrs.field(factory=dict)
    chains: dict[Keys, int] = attrs.field(factory=dict)
    """For each value, the references that it takes to reach the end of its longest chain."""
    opened: list[Keys] = attrs.field(factory=list)
    """Addresses of the values that are being resolved, outermost first."""
    characters: int = 0
    """Size of all values that were interpolated."""
    following: int = 0
    """References that are being followed."""
    refused: set[str] = attrs.field(factory=set)

    def value(self, path: Keys) -> Any:
        """Return the resolved value at an address."""
        if path not in self.done:
            if path in self.opened:
                self._refuse_circle(path)
            self.opened.append(path)
            try:
                self.done[path] = self._resolved(_raw(self.data, path), path)
            finally:
                self.opened.pop()
        return self.done[path]

    def _resolved(self, raw: Any, path: Keys) -> Any:
        if isinstance(raw, dict):
            for key in [key for key in raw if isinstance(key, str) and "${" in key]:
                self._at((*path, key)).add("an interpolation can be a value, not a key")
            return {key: self._inner(path, key) for key in raw}
        if isinstance(raw, list):
            return [self._inner(path, index) for index in range(len(raw))]
        if raw == "???":
            self._at(path).add("a value is required in place of ???")
            return INVALID
        return self._interpolated(raw, path) if isinstance(raw, str) and "${" in raw else raw

    def _inner(self, path: Keys, key: Any) -> Any:
        found = self.value((*path, key))
        self._follow(path, self.chains.get((*path, key), 0))
        return found

    def _interpolated(self, text: str, path: Keys) -> Any:
        def refer(key: Any, _memo: object) -> Any:
            return _part(self._reference(key, path))

        def call(name: str, args: tuple[Any, ...], args_str: Sequence[str]) -> Any:
            values = [arg.value if isinstance(arg, _Whole) else arg for arg in args]
            return _part(self._counted(_called(name, values, args_str), path))

        try:
            found = GrammarVisitor(refer, call, None).visit(parse(text))
        except _RefusedError as error:
            if str(error):
                self._at(path).add(str(error))
            return INVALID
        except GrammarParseError:
            self._at(path).add(f"{shown(text)} is not a valid interpolation; {_FORMS}")
            return INVALID
        except (OmegaConfBaseException, RecursionError) as error:
            self._at(path).add(first_line(error))
            return INVALID
        return found.value if isinstance(found, _Whole) else found

    def _reference(self, key: Any, path: Keys) -> Any:
        """Return the value that `${...}` refers to."""
        target: Keys = path[: -key.relative_dots] if key.relative_dots else ()
        if key.relative_dots > len(path):
            raise _RefusedError(f"Interpolation key '{key.raw}' not found: it starts above the top level")
        missing: Any = object()
        raw, found = _raw(self.data, target), missing
        for part in key.parts:
            if found is missing and isinstance(raw, str) and "${" in raw:
                found = self._resolved_first(target)  # an interpolated mapping
            inside = raw if found is missing else found
            if isinstance(inside, Unread):
                return inside
            step = _step(inside, part)
            if step is None:
                near = did_you_mean(part, map(str, inside)) if isinstance(inside, dict) else ""
                raise _RefusedError(f"Interpolation key '{key.raw}' not found{near and f'.{near}'}")
            if found is missing:
                target, raw = (*target, step), raw[step]
            else:
                found = found[step]
        value = self._resolved_first(target) if found is missing else found
        if not isinstance(value, Unread):
            self._follow(path, self.chains.get(target, 0) + 1)
        return self._counted(value, path)

    def _resolved_first(self, target: Keys) -> Any:
        """Return the value at an address that an interpolation refers to."""
        if self.following == MAX_CHAIN:
            self._refuse_once(f"this follows a chain of more than {MAX_CHAIN} interpolations")
        self.following += 1
        try:
            return self.value(target)
        finally:
            self.following -= 1

    def _follow(self, path: Keys, length: int) -> None:
        if length > MAX_CHAIN:
            self._refuse_once(f"this ends a chain of more than {MAX_CHAIN} interpolations")
        self.chains[path] = max(self.chains.get(path, 0), length)

    def _refuse_once(self, message: str) -> NoReturn:
        """Refuse an interpolation, with one fault for all that are refused for this reason."""
        known = message in self.refused
        self.refused.add(message)
        raise _RefusedError("" if known else message)

    def _counted(self, value: Any, path: Keys) -> Any:
        """Return the value, after its size was added to that of all interpolations."""
        waiting = [(value, len(path))]
        while waiting:
            item, depth = waiting.pop()
            self.characters += _VALUE + (len(item) if isinstance(item, str) else 0)
            inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            waiting.extend((each, depth + 1) for each in inner)
            if self.characters > MAX_CHARACTERS:
                self._refuse_once(f"the interpolations expand to more than {MAX_CHARACTERS:,} characters")
            if depth > MAX_DEPTH:
                self._refuse_once(f"mappings and lists are at most {MAX_DEPTH} levels deep")
        return value

    def _refuse_circle(self, path: Keys) -> None:
        """Add a fault to every interpolation of the circle that ends at `path`."""
        circle = self.opened[self.opened.index(path) :]
        texts = [at for at in circle if isinstance(_raw(self.data, at), str)]
        addresses = [self._at(at).address for at in texts]
        for at in texts:
            way = f": {' -> '.join([*addresses, addresses[0]])}" if len(texts) > 1 else ""
            self._at(at).add(f"this interpolation refers to itself{way}")
        raise _RefusedError

    def _at(self, path: Keys) -> Faults:
        faults = self.faults
        for key in path:
            faults = faults.at(key)
        return faults


def _called(name: str, args: Sequence[Any], sources: Sequence[str]) -> Any:
    """Return the value of `${name:...}`: an environment variable, or a resolver that is registered with OmegaConf."""
    if name == _ENVIRONMENT:
        return _environment(args, sources)
    if holds(args, Unread):
        return INVALID
    if not OmegaConf.has_resolver(name):
        raise _RefusedError(f"there is no resolver '{name}'; {_FORMS}")
    places = ",".join(f"${{args[{index}]}}" for index in range(len(args)))
    try:
        found = OmegaConf.create({"args": escaped(list(args)), "value": f"${{{name}:{places}}}"})["value"]
    except Exception as error:  # a resolver is the user's code
        raise _RefusedError(f"${{{name}:...}} failed: {first_line(error)}") from error
    return OmegaConf.to_container(found) if isinstance(found, (DictConfig, ListConfig)) else found


def _environment(args: Sequence[Any], sources: Sequence[str]) -> Any:
    """Return the text of an environment variable, or its default. An empty variable is an error: few intend one."""
    form = f"${{{_ENVIRONMENT}:NAME,default}}"
    if len(args) not in (1, 2) or not isinstance(args[0], str):
        raise _RefusedError(f"an environment variable is written {form}, found {', '.join(map(shown, args))}")
    name, text = args[0], os.environ.get(args[0])
    if text is None and len(args) == 1:
        raise _RefusedError(f"environment variable {name} is not set; set it, or add a default as in {form}")
    if text == "":
        remedy = "set it, or unset it to use the default" if len(args) == 2 else "set it to a value"
        raise _RefusedError(f"environment variable {name} is empty; {remedy}")
    if text is not None:
        return EnvironmentText(text, name)
    if not isinstance(args[1], (bool, int, float)):
        return args[1]
    written = str(args[1]) if "${" in sources[1] else sources[1]
    return EnvironmentText(written, f"{name}, by default")  # a default may be the text 4, too


def _raw(data: Any, path: Keys) -> Any:
    for key in path:
        data = data[key]
    return data


def _step(inside: Any, part: str) -> Any:
    """Return the key or index that a part of a reference means; None if there is no such value."""
    if isinstance(inside, list):
        return int(part) if part.isdecimal() and int(part) < len(inside) else None
    if isinstance(inside, dict):
        return part if part in inside else next((key for key in inside if str(key) == part), None)
    return None


def _part(value: Any) -> Any:
    return _Whole(value) if value is None or isinstance(value, (dict, list, Unread)) else value
