"""Plugins that hang, raise, exit or stop worker processes at a given place of a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing import active_children, get_context
from pathlib import Path

import attrs

from hooktrainer import Plugin, Priority, build_trainer, load_config, on
from hooktrainer.events import Event, FitEnd, FitStart, IterationEnd, IterationStart, StepEnd, StepStart
from hooktrainer.plugin import port
from hooktrainer.ports import RolloutEngine


def ignore_sigterm(ready: object) -> None:
    """Ignore SIGTERM, and sleep."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(600)


@attrs.define(kw_only=True)
class StopsWorkers(Plugin):
    """Send SIGSTOP to all worker processes before the sync of `step` calls the engine method `before`."""

    before: str
    step: int = 3
    engine: RolloutEngine = port()

    @on(StepEnd, priority=Priority.SYNC - 1)
    def arm(self, event: StepEnd) -> None:
        method = getattr(self.engine, self.before)

        def stop_workers_first(*arguments: object) -> object:
            for child in active_children():
                os.kill(child.pid, signal.SIGSTOP)
            sys.stdout.write(f"AT {self.before}\n")
            sys.stdout.flush()
            return method(*arguments)

        if event.step == self.step:
            setattr(self.engine, self.before, stop_workers_first)


@attrs.define(kw_only=True)
class Faulty(Plugin):
    """Print a line at the place `at`, then perform `act`. Append the status of every `fit_end` to the file `ends`."""

    at: str = ""
    step: int = 2
    act: str = "sleep"

    def _reach(self, event: Event, place: str, step: int | None = None) -> None:
        if place != self.at or step not in (None, self.step):
            return
        sys.stdout.write(f"AT {place}\n")
        sys.stdout.flush()
        match self.act:
            case "sleep":
                time.sleep(60)
            case "short":
                time.sleep(1.5)
            case "raise":
                raise ValueError("boom")
            case "exit":
                sys.exit(3)
            case "swallow":
                try:
                    time.sleep(60)
                except BaseException:  # noqa: BLE001 (a plugin that swallows interrupts)
                    sys.stdout.write("swallowed\n")
            case "wrap":
                try:
                    time.sleep(60)
                except BaseException as error:
                    raise RuntimeError("raised by user code") from error
            case "thread":
                threading.Thread(target=time.sleep, args=(600,), name="mine").start()
            case "child":
                context = get_context("spawn")
                ready = context.Event()
                context.Process(target=ignore_sigterm, args=(ready,), name="mine", daemon=True).start()
                ready.wait()
            case "stop":
                event.control.stop("that is enough")
            case "fit":
                build_trainer(load_config("inner.yaml")).fit()

    @on(FitStart, priority=Priority.CLEANUP)
    def fit_start(self, event: FitStart) -> None:
        self._reach(event, "fit_start")

    @on(StepStart)
    def step_start(self, event: StepStart) -> None:
        self._reach(event, "step_start", event.step)

    @on(IterationStart)
    def iteration_start(self, event: IterationStart) -> None:
        self._reach(event, "iteration_start", event.step)

    @on(IterationEnd)
    def iteration_end(self, event: IterationEnd) -> None:
        self._reach(event, "iteration_end", event.step)

    @on(StepEnd, priority=Priority.SYNC - 1)
    def before_sync(self, event: StepEnd) -> None:
        self._reach(event, "before_sync", event.step)

    @on(StepEnd, priority=Priority.SYNC + 1)
    def after_sync(self, event: StepEnd) -> None:
        self._reach(event, "after_sync", event.step)

    @on(StepEnd, priority=Priority.EVALUATE)
    def validation(self, event: StepEnd) -> None:
        self._reach(event, "validation", event.step)

    @on(StepEnd, priority=Priority.SAVE)
    def save(self, event: StepEnd) -> None:
        self._reach(event, "save", event.step)

    @on(FitEnd, priority=Priority.PREPARE)
    def record_end(self, event: FitEnd) -> None:
        with Path("ends").open("a") as file:
            file.write(f"{event.status} {event.step} {event.reason}\n")

    @on(FitEnd, priority=Priority.SAVE)
    def fit_end(self, event: FitEnd) -> None:
        self._reach(event, "fit_end")
        Path("saved").touch()
