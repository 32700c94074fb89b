"""The plan as text, as `hooktrainer plan` prints it and `plan.txt` stores it."""

from __future__ import annotations

from collections.abc import Iterator

from hooktrainer.bus.handlers import Handler
from hooktrainer.bus.plan import MADE_BY_THE_LOOP, PASSES, Plan
from hooktrainer.events import Event


def describe(plan: Plan) -> str:
    """Return every signal with its handlers in running order, nested signals where they are delivered."""
    lines: list[str] = []
    nested = {event for handlers in plan.handlers.values() for handler in handlers for event in handler.emits}
    for event in plan.handlers:
        if event not in nested:
            lines += _signal_lines(plan, event, 0)
    lines += [
        line
        for event in plan.handlers
        if event in nested and _is_unreachable(plan, event)
        for line in _signal_lines(plan, event, 0)
    ]
    return "\n".join(lines) + "\n"


def _is_unreachable(plan: Plan, event: type[Event]) -> bool:
    """Return whether no signal of the loop leads to a nested signal."""
    return not any(
        visit.handler.event is event or event in visit.handler.emits
        for signals in PASSES.values()
        for start in signals
        for visit in plan.walk(start)
    )


def _signal_lines(plan: Plan, event: type[Event], depth: int) -> Iterator[str]:
    indent = "    " * depth
    made = f"   (the loop makes {MADE_BY_THE_LOOP[event]})" if event in MADE_BY_THE_LOOP else ""
    yield f"{indent}{event.signal}{made}"
    if not plan.handlers.get(event):
        yield f"{indent}  (no handler)"
    for _, handlers in plan.bands(event):
        for handler in handlers:
            place = f"{handler.number:>3} {handler.band.name:<8} {handler.label:<34}"
            yield f"{indent}  {place} {_declared(handler)}".rstrip()
        for emitted in dict.fromkeys(event for handler in handlers for event in handler.emits):
            yield from _signal_lines(plan, emitted, depth + 1)


def _declared(handler: Handler) -> str:
    parts = {
        "needs": handler.needs,
        "adds": handler.adds,
        "makes": handler.makes,
        "emits": tuple(event.signal for event in handler.emits),
        "every": (str(handler.every),) if handler.every else (),
    }
    return " · ".join(f"{verb} {', '.join(names)}" for verb, names in parts.items() if names)
