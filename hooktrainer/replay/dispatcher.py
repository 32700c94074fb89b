"""Dispatch of new groups, within the budget of the staleness strategy and the capacity of the buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hooktrainer.ports import Prompt, PromptSource, Replacement, ReplayBuffer
from hooktrainer.replay.serialization import pack_prompts, unpack_prompts


class Dispatcher:
    """Dispatches prompts to the buffer; requests that exceed the budget or the capacity are dispatched later.

    `groups_per_step` is the number of groups that one step trains.
    """

    def __init__(self, prompts: PromptSource, buffer: ReplayBuffer, *, groups_per_step: int) -> None:
        self._prompts = prompts
        self._buffer = buffer
        self._groups_per_step = groups_per_step
        self._requested = 0  # below 0 for groups that a budget admitted ahead of their request
        self._replacements = 0  # dispatched without evicting finished groups
        self._again: deque[Prompt] = deque()  # prompts of failed or evicted groups, dispatched before new ones

    @property
    def exhausted(self) -> bool:
        """Whether no prompt is left to dispatch."""
        return self._prompts.exhausted and not self._again

    def request(self, groups: int) -> None:
        """Dispatch this many more groups, now or as soon as possible.

        Groups that a budget admits beyond that count ahead: as replacements, then against later requests.
        """
        self._requested += groups
        self._requested -= self._dispatch(max(0, self._requested), makes_room=True)
        replaced = min(self._replacements, max(0, -self._requested))
        self._requested, self._replacements = self._requested + replaced, self._replacements - replaced
        self._replacements = max(0, self._replacements - self._dispatch(self._replacements, makes_room=False))
        if self.exhausted:
            self._requested = self._replacements = 0

    def replace(self, replacements: Sequence[Replacement]) -> None:
        """Dispatch a group for each replacement, now or as soon as possible."""
        self.add_replacements(replacements)
        self.request(0)

    def add_replacements(self, replacements: Sequence[Replacement]) -> None:
        """Add replacements to be dispatched at the next request."""
        self._again.extend(item.prompt for item in replacements if item.prompt is not None)
        self._replacements += len(replacements)

    def state_dict(self) -> Mapping[str, object]:
        """Return the requests and replacements that are not dispatched yet."""
        return {
            "requested": self._requested,
            "replacements": self._replacements,
            "again": pack_prompts(self._again),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._requested, self._replacements = state["requested"], state["replacements"]
        self._again = deque(unpack_prompts(state["again"]))

    def _dispatch(self, requested: int, *, makes_room: bool) -> int:
        """Dispatch as many groups as allowed; return their number."""
        allowed = self._buffer.may_dispatch(requested, self._groups_per_step, makes_room=makes_room)
        again = [self._again.popleft() for _ in range(min(allowed, len(self._again)))]
        prompts = again + list(self._prompts.take(allowed - len(again)))
        self._replacements += self._buffer.dispatch(prompts, self._groups_per_step)
        return len(prompts)
