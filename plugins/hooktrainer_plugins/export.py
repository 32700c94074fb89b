"""Write the trained model into a folder that can be loaded again."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Final

import attrs
from attrs.validators import ge, optional

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError
from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.plugin import is_duration, port
from hooktrainer.ports import ModelExport, RunState

_LOG: Final = logging.getLogger("hooktrainer")
_NUMBERED: Final = re.compile(r"model_step_(\d+)")


def _is_count(_instance: object, _attribute: object, value: int) -> None:
    if value < 1 and value != -1:
        raise ValueError(f"cannot keep {value} exports; expected 1 or more, or -1 to keep all")


@attrs.define(kw_only=True)
class Export(Plugin):
    """Write the model of the last complete step to `model/` in the run directory, however the run ends.

    The format is that of Hugging Face, or that of the model. `hooktrainer generate` and `hooktrainer evaluate` read it.
    """

    every: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Steps between exports to `model_step_N` during the run; none if left out. A failed one is only a warning."""

    keep_last: int = attrs.field(default=2, validator=_is_count)
    """Number of newest `model_step_N` to keep; -1 keeps all. `model` is always kept."""

    patience_s: float = attrs.field(default=60.0, validator=is_duration)
    """Seconds that an interrupted run may take to write the model before the export is abandoned."""

    exporter: ModelExport = port()
    run: RunState = port()

    _checked: bool = attrs.field(default=False, init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE)
    def check_model(self, _event: FitStart) -> None:
        """Refuse a model that cannot be saved before any work."""
        self.exporter.check()
        self._checked = True

    @on(FitStart, priority=Priority.SYNC + 50)
    def keep_first_adapters(self, _event: FitStart) -> None:
        """Copy the adapters that a run starts with, which a resume without further steps exports."""
        self.exporter.keep_adapters()

    @on(StepEnd, priority=Priority.SAVE, needs=["weights.published"])
    def export_step(self, event: StepEnd) -> None:
        """Copy adapters while they are those of the published weights, and write `model_step_N` if it is due."""
        self.exporter.keep_adapters()
        if self.every is None or event.step % self.every or self.run.directory is None:
            return
        try:
            self.exporter.export(self.run.directory / f"model_step_{event.step}")
            self._remove_old(self.run.directory, event.step)
        except (RunError, OSError) as error:
            _LOG.warning("step %d: %s", event.step, error)

    @on(FitEnd, priority=Priority.SAVE + 50)
    def export_last(self, event: FitEnd) -> None:
        """Write `model` after the checkpoint, unless no step is complete."""
        if not self._checked or not event.step or self.run.directory is None:
            return
        if (version := self.exporter.version) != event.step:
            text = "the model is not exported: step %d is complete, but the engine holds the weights of step %d"
            _LOG.warning(text, event.step, version)
            return
        self.exporter.export(self.run.directory / "model")

    def _remove_old(self, directory: Path, step: int) -> None:
        """Remove exports beyond `keep_last`; those of later steps are of an earlier run in this directory."""
        matches = [match for path in directory.iterdir() if (match := _NUMBERED.fullmatch(path.name))]
        steps = sorted(number for match in matches if (number := int(match[1])) <= step)
        for old in [] if self.keep_last < 0 else steps[: -self.keep_last]:
            shutil.rmtree(directory / f"model_step_{old}")
