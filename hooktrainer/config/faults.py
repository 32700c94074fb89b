"""Collects what is wrong with a configuration, so that all of it is shown at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from hooktrainer._util.imports import described
from hooktrainer.errors import ConfigError, Fault, PlanError, did_you_mean


@attrs.frozen
class Faults:
    """A growing list of faults, seen from one address; the views of other addresses share the list."""

    address: str = ""
    elsewhere: Callable[[], Mapping[str, str]] = attrs.field(default=dict, repr=False)
    """Full paths by their last key: what an unknown key at a wrong level may have meant; asked if there is one."""
    found: list[Fault] = attrs.field(factory=list)
    absorbed: list[BaseException] = attrs.field(factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.found)

    def at(self, key: object) -> Faults:
        """The same list, seen from below `key`: a name, or the number of an item."""
        return attrs.evolve(self, address=_below(self.address, f"[{key}]" if isinstance(key, int) else str(key)))

    def trial(self) -> Faults:
        """A list of its own at this address, for what may be given up."""
        return attrs.evolve(self, found=[], absorbed=[])

    def add(self, message: str) -> None:
        """Take note of one fault at this address."""
        self.found.append(Fault(self.address, message))

    def unknown(self, key: object, known: Iterable[str], owner: str, way_out: str = "") -> None:
        """Take note of a key that `owner` does not take, with the way out, or the closest one that exists."""
        known, word, elsewhere = list(known), str(key), self.elsewhere()
        near = difflib.get_close_matches(word, elsewhere, n=1)
        there = f" Did you mean '{elsewhere[near[0]]}'?" if near else ""
        hint = f" {way_out}" if way_out else there if word in elsewhere else did_you_mean(word, known) or there
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        self.at(word).add(f"unknown key '{word}'; {owner} {takes}.{hint}")

    def absorb(self, error: BaseException) -> None:
        """Take over an error: the faults of a `ConfigError`, seen from this address, or what it says.

        A ValueError or TypeError is taken for a refusal, anything else for a bug: it is named with its place.
        """
        self.absorbed.append(error)
        if isinstance(error, ConfigError):
            self.found.extend(Fault(_below(self.address, fault.address), fault.message) for fault in error.faults)
        elif isinstance(error, (ValueError, TypeError)):
            self.add(str(error.args[0]) if error.args else type(error).__name__)
        else:
            self.add(described(error))

    def raise_if_any(self, sections: Sequence[str] = ()) -> None:
        """Raise `ConfigError` with everything that was found, each fault once, in the order of the sections.

        It is a `PlanError` if nothing else was found; the first bug that was absorbed is its cause.
        """
        if self.found:
            of_plan = {fault for error in self.absorbed if isinstance(error, PlanError) for fault in error.faults}
            raised = PlanError if of_plan.issuperset(self.found) else ConfigError
            faults = sorted(dict.fromkeys(self.found), key=lambda fault: _place(fault.address, sections))
            raise raised(faults) from next(filter(None, map(_bug, self.absorbed)), None)


def shown(value: object) -> str:
    """A value and its type, as a fault shows it."""
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"


def first_line(error: Exception) -> str:
    """What a library says, without the state that it adds."""
    return str(error).partition("\n")[0]


def _below(address: str, key: str) -> str:
    return f"{address}.{key}" if address and key and not key.startswith("[") else address + key


def _place(address: str, sections: Sequence[str]) -> tuple[int, int]:
    section = re.split(r"\W", address, maxsplit=1)[0]
    item = re.match(r"\w+\[(\d+)", address)
    return sections.index(section) if section in sections else -1, int(item[1]) if item else -1


def _bug(error: BaseException) -> BaseException | None:
    if isinstance(error, ConfigError):
        return error.__cause__
    return None if isinstance(error, (ValueError, TypeError)) else error
