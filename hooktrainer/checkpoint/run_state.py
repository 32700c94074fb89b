"""The state of a whole run: captured at the end of a step, put back before the first one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from hooktrainer._util.random_state import get_random_state, set_random_state
from hooktrainer.bus.binding import Ports
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.errors import CheckpointError, ConfigError, did_you_mean
from hooktrainer.events import Status
from hooktrainer.ports import Snapshot
from hooktrainer.replay.dispatcher import Dispatcher

_LOG: Final = logging.getLogger("hooktrainer")
MISFITS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""What somebody's `load_state_dict` raises for a state that is not its own."""


@attrs.frozen(kw_only=True)
class RunPlace:
    """Where a run is kept, and what it goes on from."""

    directory: Path | None = None
    """The run directory; without one nothing can be kept."""
    resume: Literal["off", "auto"] | Path = "off"
    """`off`, `auto` for the newest checkpoint in the run directory, or a checkpoint."""


class LiveState:
    """The port `RunState`: every part of a run by name."""

    def __init__(
        self,
        plugins: Sequence[PlacedPlugin],
        ports: Ports,
        dispatcher: Dispatcher,
        place: RunPlace,
        total_steps: int | None,
    ) -> None:
        self.directory: Final = place.directory
        self.resume: Final = place.resume
        self.step = 0
        """The complete step that the run goes on from."""
        self.latest: Snapshot | None = None
        """What was captured or restored last."""
        self.had_ended = False
        """Whether nothing was left to dispatch when it was captured, in a run of this many steps."""
        self._learner: Snapshot | None = None
        self._plugins = {placed.name: placed.plugin for placed in plugins}
        self._ports = ports
        self._dispatcher = dispatcher
        self._total_steps = total_steps

    def capture(self, step: int) -> Snapshot:
        """A copy of everything, as of the end of `step`. Raises `CheckpointError` naming what cannot be kept."""
        with self._ports.buffer.frozen():  # a plugin may count groups in its filter
            return self._captured(step)

    def _captured(self, step: int) -> Snapshot:
        dispatcher = self._dispatcher
        plugins = {name: plugin.state_dict() for name, plugin in self._plugins.items()}
        parts = {
            "loop": {"exhausted": dispatcher.exhausted, "total_steps": self._total_steps},
            "random": self.random(),
            "plugins": {name: kept for name, kept in plugins.items() if kept},
            "dispatch": dispatcher.state_dict(),
            **{name: _state_of(name, part) for name, part in self._parts().items()},
        }
        self.latest = encode(step, parts)
        return self.latest

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:
        """Put everything back before the first step. Raises `CheckpointError` if it is no state of this run."""
        states = {name: decode(snapshot, name) for name in snapshot.parts}
        with _fitting(snapshot, "plugins"):
            self._restore_plugins(snapshot.step, states["plugins"], strict=strict)
        for name in ("learner", "prompts"):
            with _fitting(snapshot, name):
                self._parts()[name].load_state_dict(states[name])
        with _fitting(snapshot, "buffer"):
            lost = self._ports.buffer.load_state_dict(states["buffer"], keep_finished=keep_finished)
            if (version := self._ports.buffer.version) != snapshot.step:
                raise ValueError(f"its version is {version}")
        with _fitting(snapshot, "dispatch"):
            self._dispatcher.load_state_dict(states["dispatch"])
            self._dispatcher.add_replacements(lost)
        with _fitting(snapshot, "random"):
            self.set_random(states["random"])
        with _fitting(snapshot, "loop"):
            loop = states["loop"]
            self.had_ended = loop["exhausted"] and loop["total_steps"] == self._total_steps
        self.step, self.latest = snapshot.step, snapshot

    def capture_learner(self, step: int) -> Snapshot:
        """A copy of the learner alone, as of the end of `step`. Raises `CheckpointError` naming what cannot be kept."""
        if self._learner is None or self._learner.step != step:  # one copy for everybody who keeps it
            self._learner = encode(step, {"learner": _state_of("learner", self._ports.learner)})
        return self._learner

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Put the learner alone back, at any time between updates of `step`, which begins anew for it."""
        with _fitting(snapshot, "learner"):
            self._ports.learner.load_state_dict(decode(snapshot, "learner"))
        self._ports.learner.start_step(step)  # a learner remembers the step that it was kept in
        _LOG.warning("the learner was put back to the end of step %d", snapshot.step)

    def random(self) -> Mapping[str, object]:
        """Return the state of the global random generators of Python, NumPy and torch."""
        return get_random_state()

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `random()`."""
        set_random_state(state)

    def already_done(self, data_ended: Callable[[int], bool]) -> str | None:
        """Return why the restored run has no step left; None if a step remains."""
        done, total = self.step, self._total_steps
        if done and total is not None and done >= total:
            return f"all {total} steps are done" if done == total else f"{done} steps are done; total_steps is {total}"
        return "the data has ended" if self.had_ended and data_ended(done + 1) else None

    def end_of_data(self, complete: int) -> tuple[Status, str]:
        """Return the status of a run whose data ended after step `complete`.

        Raises `CheckpointError` if a resumed run could make no step for that reason, and did not end so before.
        """
        if not self.step or complete > self.step:
            return "completed", "the data has ended"
        if self.had_ended:
            return "already_done", "the data has ended"
        raise CheckpointError(
            f"no step could be made after step {self.step}, where the run was resumed: the data has ended, but "
            f"total_steps = {self._total_steps}. Raise trainer.total_epochs, or lower total_steps"
        )

    def _parts(self) -> Mapping[str, Any]:
        return {"learner": self._ports.learner, "buffer": self._ports.buffer, "prompts": self._ports.prompts}

    def _restore_plugins(self, step: int, states: Mapping[str, Any], *, strict: bool) -> None:
        for name in sorted(states.keys() - self._plugins.keys()):
            text = f"the checkpoint has the state of a plugin '{name}', which is not in the configuration."
            text += did_you_mean(name, self._plugins)
            if strict:
                raise CheckpointError(f"{text} Put it back, or leave its state out with checkpoint's `strict: false`")
            _LOG.warning("%s It is left out.", text)
        for name, plugin in self._plugins.items():
            if name in states:
                try:
                    plugin.load_state_dict(states[name])
                except (ConfigError, *MISFITS) as error:
                    known = isinstance(error, ConfigError)  # says all; anything else is found by its traceback
                    found = error if known else repr(error)
                    text = f"the state of the plugin '{name}' in the checkpoint of step {step} does not fit it: {found}"
                    way_out = "Go on with the plugin that was saved, or give it another `name` and set `strict: false`"
                    raise CheckpointError(f"{text}. {way_out} at checkpoint") from (None if known else error)
            elif plugin.state_dict():
                _LOG.warning("the checkpoint has no state of the plugin '%s', which begins anew", name)


def _state_of(name: str, part: Any) -> object:
    state_dict: Callable[[], object] | None = getattr(part, "state_dict", None)
    if state_dict is None:
        raise CheckpointError(f"the {name} cannot be kept: {type(part).__name__} has no state_dict and load_state_dict")
    return state_dict()


@contextmanager
def _fitting(snapshot: Snapshot, part: str) -> Iterator[None]:
    """Whatever a part makes of a state that is not its own is a `CheckpointError`."""
    try:
        yield
    except MISFITS as error:
        text = f"part '{part}' of the checkpoint of step {snapshot.step} does not fit this run: {error!r}"
        raise CheckpointError(text) from error
