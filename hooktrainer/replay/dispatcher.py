"""Dispatch: the loop's only source of new groups, within the strategy's budget and the capacity of the buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hooktrainer.ports import Lost, Prompt, PromptSource, ReplayBuffer
from hooktrainer.replay.serialization import pack_prompts, unpack_prompts


class Dispatcher:
    """Hands prompts to the buffer; what it may not hand over yet is owed and goes out as soon as it may."""

    def __init__(self, prompts: PromptSource, buffer: ReplayBuffer, *, per_step: int) -> None:
        self._prompts = prompts
        self._buffer = buffer
        self._per_step = per_step
        self._fresh = 0  # below 0 for what a budget let out ahead
        self._missing = 0  # replacements; they never push out what they could replace
        self._again: deque[Prompt] = deque()  # prompts of lost groups, before any new one

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can be dispatched."""
        return self._prompts.exhausted and not self._again

    def request(self, groups: int) -> None:
        """Dispatch this many groups more, now or as soon as it is allowed.

        What a budget lets out beyond that counts ahead: first as replacements, then against later requests.
        """
        self._fresh += groups
        self._fresh -= self._dispatch(max(0, self._fresh), makes_room=True)
        replaced = min(self._missing, max(0, -self._fresh))
        self._fresh, self._missing = self._fresh + replaced, self._missing - replaced
        self._missing = max(0, self._missing - self._dispatch(self._missing, makes_room=False))
        if self.exhausted:
            self._fresh = self._missing = 0

    def replace(self, lost: Sequence[Lost]) -> None:
        """Dispatch one group for each that was lost, with its own prompt where that is wanted."""
        self.owe(lost)
        self.request(0)

    def owe(self, lost: Sequence[Lost]) -> None:
        """As `replace`, at the next request."""
        self._again.extend(item.prompt for item in lost if item.prompt is not None)
        self._missing += len(lost)

    def state_dict(self) -> Mapping[str, object]:
        """What is owed."""
        return {"fresh": self._fresh, "missing": self._missing, "again": pack_prompts(self._again)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Owe it again."""
        self._fresh, self._missing = state["fresh"], state["missing"]
        self._again = deque(unpack_prompts(state["again"]))

    def _dispatch(self, wanted: int, *, makes_room: bool) -> int:
        allowed = self._buffer.may_dispatch(wanted, self._per_step, makes_room=makes_room)
        again = [self._again.popleft() for _ in range(min(allowed, len(self._again)))]
        prompts = again + list(self._prompts.take(allowed - len(again)))
        if prompts:
            self._missing += self._buffer.dispatch(prompts)
        return len(prompts)
