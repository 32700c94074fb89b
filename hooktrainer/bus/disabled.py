"""Plugins that are configured but disabled, which a fault names if nothing else provides the missing part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from hooktrainer.bus.handlers import PlacedPlugin, handlers_of
from hooktrainer.errors import Fault
from hooktrainer.events import Event


@attrs.frozen
class Disabled:
    """The disabled plugins of a configuration."""

    plugins: tuple[PlacedPlugin, ...] = ()

    def lacking(self, fault: Fault, *, makes: str = "", emits: type[Event] | None = None, otherwise: str = "") -> Fault:
        """Return a fault that names the first plugin whose handlers make the data or emit the event.

        Its message ends with `otherwise` if there is none.
        """

        def provides(placed: PlacedPlugin) -> bool:
            return any(makes in handler.makes or emits in handler.emits for handler in handlers_of(placed).handlers)

        return self.naming(fault, provides, otherwise)

    def naming(self, fault: Fault, provides: Callable[[PlacedPlugin], bool], otherwise: str) -> Fault:
        """Return a fault that names the first plugin for which `provides` is true, and how to enable it."""
        for placed in filter(provides, self.plugins):
            text = f" {placed.name} is configured but disabled: set {placed.address}.enabled to true."
            return attrs.evolve(fault, message=fault.message + text, because=f"{placed.address}.enabled")
        return attrs.evolve(fault, message=fault.message + otherwise)


NONE_DISABLED: Final = Disabled()
