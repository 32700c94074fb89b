"""The state of a whole run: captured at the end of a step, restored before the first one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

import attrs

from hooktrainer._util import files
from hooktrainer._util.random_state import get_random_state, set_random_state
from hooktrainer.bus.binding import Ports
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import CheckpointError, ConfigError, StarvedError, add_note, did_you_mean, repr_of
from hooktrainer.events import Status
from hooktrainer.plugin import Plugin
from hooktrainer.ports import RunInfo, Snapshot, Stateful
from hooktrainer.replay.dispatcher import Dispatcher

_LOG: Final = logging.getLogger("hooktrainer")
_LOGGED_STEP: Final = ".last_row"
_LOAD_ERRORS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""Errors that `load_state_dict` may raise for the state of another component."""


@attrs.frozen(kw_only=True)
class RunPlace:
    """The directory of a run, and the checkpoint to resume from."""

    directory: Path | None = None
    """The run directory; without one no checkpoint can be saved."""
    resume: Literal["off", "auto"] | Path = "off"
    """`off`, `auto` for the newest checkpoint in the run directory, or the path of a checkpoint."""
    seed: int = 0
    """The seed of the run."""
    name: str = "run"
    """`run.name` of the configuration."""
    id: str = attrs.field(factory=lambda: uuid4().hex[:8])
    """Identifies the run in trackers, over all of its starts."""
    start: int = 1
    """1 for the first start of the run, one more for every resume."""
    config: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    """The configuration as plain data."""


class LiveState:
    """The port `RunState` of a run: the state of every part by name."""

    def __init__(
        self,
        plugins: Sequence[PlacedPlugin],
        ports: Ports,
        dispatcher: Dispatcher,
        place: RunPlace,
        config: TrainerConfig,
        *,
        disabled: Sequence[PlacedPlugin] = (),
    ) -> None:
        self.directory: Final = place.directory
        self.resume: Final = place.resume
        self.seed: Final = place.seed
        self.step = 0
        """The complete step that the run was restored from."""
        self.latest: Snapshot | None = None
        """The snapshot that was captured or restored last."""
        self.had_ended = False
        """Whether the restored run had no prompts left and the same `total_steps`."""
        self._plugins = {placed.name: placed.plugin for placed in plugins}
        self._disabled = {placed.name: f"{placed.address}.enabled" for placed in disabled}
        self._ports = ports
        self._dispatcher = dispatcher
        self.total_steps: Final = config.total_steps
        self.dropped_sinks: tuple[str, ...] = ()
        self._place, self._iterations = place, config.parameter_sync_step
        self._random_at_end: Mapping[str, object] | None = None

    @property
    def info(self) -> RunInfo:
        """Return what sinks are told about the run; complete once a checkpoint was restored."""
        return RunInfo(
            directory=self.directory,
            name=self._place.name,
            id=self._place.id,
            config=self._place.config,
            resumed_step=self.step,
            start=self._place.start,
            total_steps=self.total_steps,
            iterations_per_step=self._iterations,
        )

    @property
    def logged_step(self) -> int:
        """Return the last step recorded by `record_logged_step`; 0 if there is none."""
        try:
            return 0 if self.directory is None else int((self.directory / _LOGGED_STEP).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def record_logged_step(self, step: int) -> None:
        """Record in the run directory that the row of `step` was written."""
        if self.directory is not None and self.directory.is_dir():
            try:
                files.replace(self.directory / _LOGGED_STEP, str(step).encode("ascii"))
            except OSError as error:
                text = "%s cannot be written (%s): a resumed run does not know which steps a sink already has"
                files.warn_once(text, self.directory / _LOGGED_STEP, error.strerror)

    def record_dropped_sink(self, name: str) -> None:
        """Count a sink that failed and was dropped, for the result of the run."""
        self.dropped_sinks = (*self.dropped_sinks, name)

    def keep_random_state(self) -> None:
        """Save the random state at the end of the loop, for a snapshot that is taken after other fit_end handlers."""
        self._random_at_end = self.random()

    def capture(self, step: int) -> Snapshot:
        """Return a copy of the whole state at the end of `step`.

        Raises `CheckpointError` with the name of a state that cannot be saved.
        """
        with self._ports.buffer.frozen():  # a plugin may count groups in its filter
            return self._captured(step)

    def _captured(self, step: int) -> Snapshot:
        dispatcher = self._dispatcher
        plugins = {name: _state_of_plugin(name, plugin) for name, plugin in self._plugins.items()}
        parts = {
            "loop": {"exhausted": dispatcher.exhausted, "total_steps": self.total_steps},
            "random": self._random_at_end or self.random(),
            "plugins": {name: state for name, state in plugins.items() if state},
            "dispatch": dispatcher.state_dict(),
            **{name: _state_of(name, part) for name, part in self._parts().items()},
        }
        self.latest = encode(step, parts)
        return self.latest

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:
        """Restore the whole state before the first step. Raises `CheckpointError` if it does not fit this run."""
        states = {name: decode(snapshot, name) for name in snapshot.parts}
        with _load_errors_of(snapshot, "plugins"):
            self._restore_plugins(snapshot.step, states["plugins"], strict=strict)
        for name in ("learner", "prompts"):
            with _load_errors_of(snapshot, name):
                self._parts()[name].load_state_dict(states[name])
        with _load_errors_of(snapshot, "buffer"):
            lost = self._ports.buffer.load_state_dict(states["buffer"], keep_finished=keep_finished)
            if (version := self._ports.buffer.version) != snapshot.step:
                raise ValueError(f"its version is {version}")
        with _load_errors_of(snapshot, "dispatch"):
            self._dispatcher.load_state_dict(states["dispatch"])
            self._dispatcher.add_replacements(lost)
        with _load_errors_of(snapshot, "random"):
            self.set_random(states["random"])
        with _load_errors_of(snapshot, "loop"):
            loop = states["loop"]
            self.had_ended = loop["exhausted"] and loop["total_steps"] == self.total_steps
        self.step, self.latest = snapshot.step, snapshot

    def capture_learner(self, step: int) -> Snapshot:
        """Return a copy of the learner's current state; `step` is the last complete step.

        Raises `CheckpointError` with the name of a state that cannot be saved.
        """
        return encode(step, {"learner": _state_of("learner", self._ports.learner)})

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Restore the learner alone, between updates of `step`; the learner starts that step again."""
        with _load_errors_of(snapshot, "learner"):
            self._ports.learner.load_state_dict(decode(snapshot, "learner"))
        self._ports.learner.start_step(step)  # the restored learner is in the step that it was captured in
        _LOG.warning("the learner was restored to the end of step %d", snapshot.step)

    def random(self) -> Mapping[str, object]:
        """Return the state of the global random generators of Python, NumPy and torch."""
        return get_random_state()

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `random()`."""
        set_random_state(state)

    def already_done(self, data_ended: Callable[[int], bool]) -> str | None:
        """Return why the restored run has no step left; None if a step remains."""
        done, total = self.step, self.total_steps
        if done and total is not None and done >= total:
            return f"all {total} steps are done" if done == total else f"{done} steps are done; total_steps is {total}"
        return "the data has ended" if self.had_ended and data_ended(done + 1) else None

    def end_of_data(self, complete: int) -> tuple[Status, str]:
        """Return the status of a run whose data ended after step `complete`.

        Raises `StarvedError` if no step was made, as when a filter dropped every group.
        Raises `CheckpointError` if a resumed run could make no step for that reason, and did not end so before.
        """
        if not complete:
            raise StarvedError(
                "no step was made: the data ended before the first mini-batch was complete. Every group was dropped, "
                "evicted or failed; add prompts, or check the scores and the plugins that drop groups"
            )
        if complete > self.step:
            total = self.total_steps
            early = "" if total is None else f" before step {total}; trainer.total_epochs repeats it"
            return "completed", f"the data has ended{early}"
        if self.had_ended:
            return "already_done", "the data has ended"
        raise CheckpointError(
            f"no step could be made after step {self.step}, where the run was resumed: the data has ended, but "
            f"total_steps = {self.total_steps}. Raise trainer.total_epochs, or lower total_steps"
        )

    def _parts(self) -> Mapping[str, Stateful]:
        return {"learner": self._ports.learner, "buffer": self._ports.buffer, "prompts": self._ports.prompts}

    def _restore_plugins(self, step: int, states: Mapping[str, Any], *, strict: bool) -> None:
        for name in sorted(states.keys() - self._plugins.keys()):
            disabled = self._disabled.get(name)
            absent = f"is not in the configuration.{did_you_mean(name, self._plugins)}"
            text = (
                f"the checkpoint holds the state of a plugin '{name}', which {'is disabled.' if disabled else absent}"
            )
            if strict:
                remedy = f"Set {disabled} to true" if disabled else "Add the plugin"
                raise CheckpointError(f"{text} {remedy}, or ignore its state with checkpoint's `strict: false`")
            _LOG.warning("%s The state is ignored.", text)
        for name, plugin in self._plugins.items():
            if name in states:
                try:
                    plugin.load_state_dict(states[name])
                except (ConfigError, *_LOAD_ERRORS) as error:
                    expected = isinstance(error, ConfigError)  # any other error needs its traceback
                    found = error if expected else repr_of(error)
                    text = f"the state of the plugin '{name}' in the checkpoint of step {step} does not fit it: {found}"
                    remedy = "Resume with the plugin that was saved, or give it another `name` and set `strict: false`"
                    raise CheckpointError(f"{text}. {remedy} for checkpoint") from (None if expected else error)
            elif _state_of_plugin(name, plugin):
                _LOG.warning("the checkpoint has no state of the plugin '%s'; its initial state is used", name)


def _state_of_plugin(name: str, plugin: Plugin) -> Mapping[str, object]:
    try:
        return plugin.state_dict()
    except Exception as error:
        add_note(error, f"raised by state_dict of the plugin '{name}'")
        raise


def _state_of(name: str, part: object) -> object:
    if not isinstance(part, Stateful):
        raise CheckpointError(
            f"the {name} cannot be saved: {type(part).__name__} has no state_dict and load_state_dict"
        )
    return part.state_dict()


@contextmanager
def _load_errors_of(snapshot: Snapshot, part: str) -> Iterator[None]:
    """Raise every error of a state that does not fit as a `CheckpointError` that names the part."""
    try:
        yield
    except _LOAD_ERRORS as error:
        text = f"part '{part}' of the checkpoint of step {snapshot.step} does not fit this run: {repr_of(error)}"
        raise CheckpointError(text) from error
