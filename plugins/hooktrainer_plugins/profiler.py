"""Profile chosen steps with torch.profiler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import attrs
from attrs.validators import deep_iterable, ge, instance_of

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, StepEnd, StepStart
from hooktrainer.plugin import port
from hooktrainer.ports import RunState

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class Profiler(Plugin):
    """Profile the operators of chosen steps, and write `profile_step_<k>.json` in the run directory.

    Perfetto and `chrome://tracing` open the file. It has the operators of the learner, and of an engine `inline`, with
    the kernels of GPUs. Worker threads and processes are not profiled. A step takes longer while it is profiled. If the
    file cannot be written, the run continues without it.
    """

    steps: Sequence[int] = attrs.field(
        default=(2,), converter=tuple, validator=deep_iterable([instance_of(int), ge(1)])
    )
    """The steps, each with a file of its own. The first step of a run is not typical."""
    shapes: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether to record the shapes of the inputs of each operator."""
    stacks: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether to record the line of code that called each operator."""
    memory: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether to record allocations of tensors."""

    run: RunState = port()

    _profile: Any = attrs.field(default=None, init=False, repr=False)  # of torch.profiler, while a step is profiled
    _step: int = attrs.field(default=0, init=False, repr=False)

    @on(StepStart, priority=Priority.PREPARE + 90)
    def start(self, event: StepStart) -> None:
        """Start to profile a chosen step."""
        if event.step not in self.steps or self.run.directory is None:
            return
        from torch.profiler import profile  # a listing of plugins starts without torch

        self._step = event.step
        self._profile = profile(record_shapes=self.shapes, with_stack=self.stacks, profile_memory=self.memory)
        self._profile.start()

    @on(StepEnd, priority=Priority.CLEANUP)
    def stop(self, _event: StepEnd) -> None:
        """Write the profile of the step."""
        self._write()

    @on(FitEnd, priority=Priority.CLEANUP)
    def stop_unfinished(self, _event: FitEnd) -> None:
        """Write the profile of a step that did not end."""
        self._write()

    def _write(self) -> None:
        profiled, self._profile = self._profile, None
        if profiled is None or self.run.directory is None:
            return
        profiled.stop()
        path = self.run.directory / f"profile_step_{self._step}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb"):
                pass  # the exporter of torch only logs that it cannot write
            profiled.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            _LOG.warning("the profile of step %d cannot be written to %s: %s", self._step, path, error)
