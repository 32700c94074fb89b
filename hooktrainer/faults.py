"""Collects what is wrong with a configuration, so that all of it is shown at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

import attrs

from hooktrainer.errors import ConfigError, Fault, did_you_mean


@attrs.frozen
class Faults:
    """A growing list of faults, seen from one address; the views of other addresses share the list."""

    address: str = ""
    elsewhere: Callable[[], Mapping[str, str]] = attrs.field(default=dict, repr=False)
    """Full paths by their last key: what an unknown key at a wrong level may have meant; asked if there is one."""
    found: list[Fault] = attrs.field(factory=list)
    causes: list[BaseException] = attrs.field(factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.found)

    def at(self, key: object) -> Faults:
        """The same list, seen from below `key`: a name, or the number of an item."""
        if isinstance(key, int):
            return attrs.evolve(self, address=f"{self.address}[{key}]")
        return attrs.evolve(self, address=f"{self.address}.{key}" if self.address else str(key))

    def add(self, message: str) -> None:
        """Take note of one fault at this address."""
        self.found.append(Fault(self.address, message))

    def unknown(self, key: object, known: Iterable[str], owner: str) -> None:
        """Take note of a key that `owner` does not take, with the closest one that exists."""
        known, word, elsewhere = list(known), str(key), self.elsewhere()
        near = difflib.get_close_matches(word, elsewhere, n=1)
        there = f" Did you mean '{elsewhere[near[0]]}'?" if near else ""
        hint = there if word in elsewhere else did_you_mean(word, known) or there
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        self.at(word).add(f"unknown key '{word}'; {owner} {takes}.{hint}")

    def absorb(self, error: ConfigError) -> None:
        """Take over the faults of an error; those without an address get this one."""
        self.found.extend(fault if fault.address else Fault(self.address, fault.message) for fault in error.faults)
        if error.__cause__ is not None:
            self.causes.append(error.__cause__)

    def raise_if_any(self) -> None:
        """Raise `ConfigError` with everything that was found."""
        if self.found:
            raise ConfigError(self.found) from next(iter(self.causes), None)


def shown(value: object) -> str:
    """A value and its type, as a fault shows it."""
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"
