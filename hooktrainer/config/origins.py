"""The overrides and plugins behind the addresses of a configuration, which faults name."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from hooktrainer.errors import Fault

_WHOLE: Final = re.compile(r"\w+|plugins\[\d+\]")
"""Addresses of a section or a plugin, whose faults may depend on all of its options."""


@attrs.frozen
class Origins:
    """The overrides of a configuration, and the names of its plugins, by address."""

    overrides: dict[str, str] = attrs.field(factory=dict)
    """For each address that the command line set, the last override that set it."""
    plugins: dict[str, str] = attrs.field(factory=dict)

    def overridden(self, address: str, value: Any, override: str) -> None:
        """Record an override; of a mapping, every key, since the other keys keep their values."""
        if isinstance(value, dict) and value:
            for key, item in value.items():
                self.overridden(f"{address}.{key}", item, override)
        else:
            self.overrides.pop(address, None)  # the last override of several is the last item
            self.overrides[address] = override

    def attributed(self, fault: Fault) -> Fault:
        """Return a fault with the plugin at its address, and the override that caused it."""
        plugin = re.match(r"plugins\[\d+\]", fault.address)
        name = self.plugins.get(plugin[0], "") if plugin else ""
        override = next(filter(None, map(self._override, filter(None, (fault.because, fault.address)))), "")
        return attrs.evolve(fault, plugin=fault.plugin or name, override=fault.override or override)

    def _override(self, address: str) -> str:
        """Return the last override of an address, of a value that contains it, or of an option that it depends on."""
        found = [
            override
            for key, override in self.overrides.items()
            if f"{address}.".startswith((f"{key}.", f"{key}["))
            or (_WHOLE.fullmatch(address) and key.startswith((f"{address}.", f"{address}[")))
        ]
        return found[-1] if found else ""
