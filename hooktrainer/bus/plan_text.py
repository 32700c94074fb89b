"""The plan as text: what `hooktrainer plan` prints and `plan.txt` keeps."""

from __future__ import annotations

from collections.abc import Iterator

from hooktrainer.bus.handlers import Slot
from hooktrainer.bus.plan import MADE_BY_THE_CORE, PASSES, Plan
from hooktrainer.events import Event, snake_case


def describe(plan: Plan) -> str:
    """Every signal with its handlers in running order, nested signals where they are delivered."""
    lines: list[str] = []
    nested = {event for slots in plan.slots.values() for slot in slots for event in slot.emits}
    for event in plan.slots:
        if event not in nested:
            lines += _signal_lines(plan, event, 0)
    lines += [
        line
        for event in plan.slots
        if event in nested and _alone(plan, event)
        for line in _signal_lines(plan, event, 0)
    ]
    return "\n".join(lines) + "\n"


def _alone(plan: Plan, event: type[Event]) -> bool:
    """Whether a nested signal is reached from none of the signals of the loop."""
    return not any(
        visit.slot.event is event or event in visit.slot.emits
        for signals in PASSES.values()
        for start in signals
        for visit in plan.walk(start)
    )


def _signal_lines(plan: Plan, event: type[Event], depth: int) -> Iterator[str]:
    indent = "    " * depth
    made = f"   (the core makes {MADE_BY_THE_CORE[event]})" if event in MADE_BY_THE_CORE else ""
    yield f"{indent}{event.signal}{made}"
    if not plan.slots.get(event):
        yield f"{indent}  (no handler)"
    for _, slots in plan.bands(event):
        for slot in slots:
            yield f"{indent}  {slot.number:>3} {slot.band.name:<8} {slot.label:<34} {_declared(slot)}".rstrip()
        for emitted in dict.fromkeys(event for slot in slots for event in slot.emits):
            yield from _signal_lines(plan, emitted, depth + 1)


def _declared(slot: Slot) -> str:
    parts = {
        "needs": slot.needs,
        "adds": slot.adds,
        "makes": slot.makes,
        "emits": tuple(snake_case(event.__name__) for event in slot.emits),
        "every": (str(slot.every),) if slot.every else (),
    }
    return " · ".join(f"{verb} {', '.join(names)}" for verb, names in parts.items() if names)
