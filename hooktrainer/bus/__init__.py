"""The event bus, which orders the handlers of all plugins, checks their order, and calls them."""

from __future__ import annotations

from hooktrainer.bus.bus import Bus

__all__ = ["Bus", "binding", "control", "disabled", "handlers", "plan", "plan_text", "timing"]
