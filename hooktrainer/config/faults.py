"""Collect the faults of a configuration, so that all of them are reported at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from hooktrainer._util.imports import described
from hooktrainer.config.origins import Origins
from hooktrainer.config.other_names import OPTIONS, hint_for_other_name
from hooktrainer.config.scalars import EnvironmentText
from hooktrainer.errors import ConfigError, Fault, PlanError, did_you_mean, message_of

_LONGEST: Final = 400
"""Characters of a value in a fault."""
_LIKELY_TYPO: Final = 0.8
"""Similarity to an option of the same section from which a key is a typing error, not a key of verl or TRL for
another section."""


@attrs.frozen
class Faults:
    """A list of faults with the address of new ones; objects for other addresses share the list."""

    address: str = ""
    elsewhere: Callable[[], Mapping[str, str]] = attrs.field(default=dict, repr=False)
    """Returns full paths by their last key, to suggest one for a key at a wrong level; called only if needed."""
    found: list[Fault] = attrs.field(factory=list)
    absorbed: list[BaseException] = attrs.field(factory=list, repr=False)
    origins: Origins = attrs.field(factory=Origins, repr=False)

    def __len__(self) -> int:
        return len(self.found)

    def at(self, key: object) -> Faults:
        """Return the same list for the address below `key`: a name, or the index of an item."""
        return attrs.evolve(self, address=_below(self.address, f"[{key}]" if isinstance(key, int) else str(key)))

    def trial(self) -> Faults:
        """Return a separate list for this address, for an attempt that may be discarded."""
        return attrs.evolve(self, found=[], absorbed=[])

    def add(self, message: str) -> None:
        """Add a fault at this address."""
        self.found.append(Fault(self.address, message))

    def unknown(self, key: object, known: Iterable[str], owner: str, remedy: str = "") -> None:
        """Add the fault of a key that `owner` does not take, with `remedy`, or the closest existing key."""
        known, word, elsewhere = list(known), str(key)[:_LONGEST], self.elsewhere()
        near = difflib.get_close_matches(word, elsewhere, n=1)
        there = f" Did you mean '{elsewhere[near[0]]}'?" if near else ""
        typed = difflib.get_close_matches(word, known, n=1, cutoff=_LIKELY_TYPO)
        below_here = OPTIONS.get(word, "").startswith(f"{self.address}.")
        other = "" if typed and not below_here else hint_for_other_name(word)
        similar = there if word in elsewhere else other or did_you_mean(word, known) or there
        hint = f" {remedy}" if remedy else similar
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        self.at(word).add(f"unknown key '{word}'; {owner} {takes}.{hint}")

    def absorb(self, error: BaseException) -> None:
        """Add the faults of a `ConfigError` below this address, or the text of another error.

        A ValueError or TypeError counts as a refused value, any other error as a bug: its fault names the line.
        """
        self.absorbed.append(error)
        if isinstance(error, ConfigError):
            self.found.extend(attrs.evolve(each, address=_below(self.address, each.address)) for each in error.faults)
        elif isinstance(error, (ValueError, TypeError)):
            first = error.args[0] if error.args else ""
            self.add((first if isinstance(first, str) else message_of(error)) or type(error).__name__)
        else:
            self.add(described(error))

    def raise_if_any(self, sections: Sequence[str] = ()) -> None:
        """Raise `ConfigError` with every fault, each once, in the order of the sections.

        The error is a `PlanError` if all faults are of the plan; its cause is the first bug that was recorded.
        """
        if self.found:
            of_plan = {fault for error in self.absorbed if isinstance(error, PlanError) for fault in error.faults}
            raised = PlanError if of_plan.issuperset(self.found) else ConfigError
            found = map(self.origins.attributed, dict.fromkeys(self.found))
            faults = sorted(found, key=lambda fault: _place(fault.address, sections))
            raise raised(faults) from next(filter(None, map(_bug, self.absorbed)), None)


def shown(value: object) -> str:
    """Return a value and its type, as faults show them."""
    if value is None:
        return "nothing"
    return short(value) if isinstance(value, EnvironmentText) else f"{short(value)} ({type(value).__name__})"


def short(value: object) -> str:
    """Return the source of a value, cut in its middle if it is long."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (an integer of 4,301 digits, or an object of the user)
        return f"<{type(value).__name__} that cannot be printed>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 4 :]}"


def first_line(error: Exception) -> str:
    """Return the first line of an error; libraries add their internal state below it."""
    return message_of(error).partition("\n")[0]


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
