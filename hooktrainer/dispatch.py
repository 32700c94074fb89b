"""Dispatch: the loop's only source of new groups, within the capacity of the buffer."""

from __future__ import annotations

from hooktrainer.ports import PromptSource, ReplayBuffer


class Dispatcher:
    """Hands prompts to the buffer; what exceeds its capacity is owed and goes out when there is room."""

    def __init__(self, prompts: PromptSource, buffer: ReplayBuffer) -> None:
        self._prompts = prompts
        self._buffer = buffer
        self._owed = 0

    @property
    def exhausted(self) -> bool:
        """Whether the data has ended."""
        return self._prompts.exhausted

    def request(self, groups: int) -> None:
        """Dispatch this many groups now or as soon as there is room."""
        self._owed += groups
        batch = self._prompts.take(min(self._owed, self._buffer.room()))
        if batch:
            self._buffer.dispatch(batch)
        self._owed = 0 if self._prompts.exhausted else self._owed - len(batch)
