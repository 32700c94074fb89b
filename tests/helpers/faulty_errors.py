"""Exceptions that are hard to show."""

from __future__ import annotations

import os

import attrs

from hooktrainer import Plugin, on
from hooktrainer.errors import RunError
from hooktrainer.events import IterationEnd


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoRepr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoNotes(Exception):
    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


class OddNotes(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.__notes__ = 3


class RaisingNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class TextIsNumber(Exception):
    def __str__(self) -> str:
        return 3  # noqa: PLE0307 (the fault)


class OwnRunError(RunError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OwnBase(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def enormous() -> Exception:
    return ValueError("x" * 50_000_000)


def group() -> BaseException:
    return ExceptionGroup("several", [NoText("one"), ValueError("two")])


def base_group() -> BaseException:
    return BaseExceptionGroup("several", [NoText("one"), OwnBase("two")])


def exit_object() -> BaseException:
    return SystemExit(NoRepr("three"))


def exit_256() -> BaseException:
    return SystemExit(256)


ERRORS = {
    make.__name__: make
    for make in (
        NoText, NoRepr, NoNotes, OddNotes, RaisingNotes, TextIsNumber, OwnRunError, OwnBase, enormous, group,
        base_group, exit_object, exit_256,
    )
}  # fmt: skip


def make(name: str) -> BaseException:
    made = ERRORS[name]
    return made("text") if isinstance(made, type) else made()


@attrs.define(kw_only=True)
class RaisesOdd(Plugin):
    """Raises an error that is hard to show, in a step."""

    error: str = ""

    @on(IterationEnd)
    def raise_it(self, _event: IterationEnd) -> None:
        raise make(self.error)


if (error := os.environ.get("RAISE_AT_IMPORT")) is not None:
    raise make(error)
