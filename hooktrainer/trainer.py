"""The training loop. It dispatches prompts, samples groups, trains on them and emits events.

    fit
      _run                      fit_start, then steps until a reason to end the run
        _run_step               step_start, up to P iterations, step_end
          _run_iteration        iteration_start, dispatch -> sample -> learn, iteration_end
        _confirm                weights_synced, called when a handler of step_end emits it
      _send_fit_end             fit_end

`hooktrainer.events` describes the events. The loop has no code for a particular plugin, algorithm, engine or mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from hooktrainer._util.hangs import Part
from hooktrainer._util.random_state import preserved_random_state
from hooktrainer._util.shutdown import attempt, finish, interruptible
from hooktrainer._util.signals import CLOSING_S, Closing, closing_part
from hooktrainer.bus import Bus
from hooktrainer.bus.binding import Ports, bind
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.checkpoint.background import BackgroundStore
from hooktrainer.checkpoint.run_state import LiveState, RunPlace
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import HookTrainerError, StarvedError, SyncError
from hooktrainer.events import FitStart, IterationEnd, IterationStart, Status, StepEnd, StepStart, WeightsSynced
from hooktrainer.metrics import Last, Record, Sum, joined, to_host
from hooktrainer.plugin import Plugin, Priority
from hooktrainer.ports import (
    Batch,
    CheckpointStore,
    LatestSamples,
    Replacement,
    Result,
    RunState,
    SampleLog,
    SupportsTimeline,
    Timeline,
)
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.samples import KeptSamples
from hooktrainer.sinks.samples import SampleFile


class Trainer:
    """Runs the training loop over a list of plugins and the ports that they use."""

    def __init__(
        self,
        plugins: Iterable[Plugin | PlacedPlugin] | Plan,
        ports: Ports,
        config: TrainerConfig,
        place: RunPlace | None = None,
    ) -> None:
        self.bus = Bus(plugins) if isinstance(plugins, Plan) else Bus.compose(plugins)
        self.bus.plan.require_sync()
        self.bus.guard(WeightsSynced, self._confirm)
        self.bus.around(StepEnd, Priority.EVALUATE, preserved_random_state)
        self.ports = ports
        self._config = config
        self._dispatcher = Dispatcher(ports.prompts, ports.buffer, groups_per_step=config.train_batch_size)
        placed, place = self.bus.plan.plugins, place or RunPlace()
        disabled = self.bus.plan.disabled.plugins
        self._state = LiveState(placed, ports, self._dispatcher, place, config, disabled=disabled)
        self._samples = KeptSamples()
        own: dict[type, object] = {
            RunState: self._state,
            CheckpointStore: BackgroundStore(place.directory),
            LatestSamples: self._samples,
            SampleLog: SampleFile(place.directory),
            Timeline: self.bus.timeline,
        }
        bind(placed, ports, own)
        self._step = 0
        self._complete = 0  # the last step whose weights were confirmed
        self._unreported: Record | None = None
        self._started = False
        self.result: Result | None = None
        """How the run ended; None before its end."""
        self._patience_s: dict[int, float] = {}
        self._at_start: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._at_signal: list[Callable[[], Exception | None]] = []

    def fit(self) -> Result:
        """Train until all steps are done, the data ends or a plugin stops the run.

        Emit `fit_end` in every case, then raise the first error of the run.
        """
        if self._started:
            raise RuntimeError("fit() was called twice on this trainer; build a new trainer for another run")
        self._started = True
        started = self.ports.clock.now()
        # Read here, because another thread uses the limits, where an error of a plugin would be lost.
        self._patience_s = {id(entry.plugin): float(entry.plugin.patience_s) for entry in self.bus.plan.plugins}
        longest = max(self._patience_s.values(), default=CLOSING_S)
        with interruptible(Closing(self._running_part, longest)) as self.bus.interrupts:
            outcome = attempt(self._run, self.bus.interrupts, self._cause_of_signal)
            first, last = self._state.step, max(self._complete, self._state.step)
            took = self.ports.clock.now() - started
            self.result = result = Result(
                status=outcome.status,
                reason=outcome.reason,
                step=last,
                resumed_from=first,
                seconds=took,
                dropped_sinks=self._state.dropped_sinks,
            )
            closing = (self.ports.buffer.close, self.ports.engine.close, *self._at_end)
            finish(outcome.failure, self.bus.interrupts, partial(self._send_fit_end, result), *closing)
        return result

    def at_start(self, action: Callable[[], None]) -> None:
        """Call `action` after fit_start if a step remains to be run."""
        self._at_start.append(action)

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` last, however the run ends."""
        self._at_end.append(action)

    def at_signal(self, cause: Callable[[], Exception | None]) -> None:
        """Call `cause` when a signal has ended the loop. If it returns an error, the run failed by that error."""
        self._at_signal.append(cause)

    def fail(self, error: HookTrainerError) -> None:
        """End the loop by an error of another thread, which calls this. Ignored before the loop and after it."""
        self.bus.interrupts.end_loop(error)

    def _cause_of_signal(self) -> Exception | None:
        return next((error for cause in self._at_signal if (error := cause()) is not None), None)

    def _run(self) -> tuple[Status, str]:
        self.bus.emit(FitStart())
        if (held := self.ports.engine.version) != (published := self.ports.buffer.version):
            raise SyncError(f"after fit_start the engine holds version {held}, but the run starts with {published}")
        self._complete = self._state.step
        if (reason := self._state.already_done(self._data_ended)) is not None:
            return "already_done", reason
        for action in self._at_start:
            action()
        if self.bus.control.reason is None:
            if isinstance(self.ports.engine, SupportsTimeline):
                self.ports.engine.use_timeline(self.bus.timeline)
            self.ports.engine.start(self.ports.buffer)
            warmup = self._config.num_warmup_batches * self._config.ppo_mini_batch_size
            self._dispatcher.request(0 if self._state.step else warmup)  # a resumed run had its warm-up
        while (done := self._complete) != self._config.total_steps:
            if self.bus.control.reason is not None:
                return "stopped", self.bus.control.reason
            with self.bus.timeline.span("step", step=done + 1):
                trained = not self._data_ended(done + 1) and self._run_step(done + 1)
            if not trained:
                return self._state.end_of_data(done)
        return "completed", f"all {done} steps are done"

    def _run_step(self, step: int) -> bool:
        """Run one step. Return False if the data ended before its first update; such a step is not counted."""
        clock, version = self.ports.clock, self.ports.buffer.version
        started = clock.now()
        self.ports.learner.start_step(step)
        record = Record(step, lambda: {"timing_s/step": Sum(clock.now() - started), **self.bus.times.end_record()})
        self._step = step
        self.bus.times.start_record()
        self.bus.emit(StepStart(step=step, version=version), record)
        sizes, batch = list[int](), Batch()
        while len(sizes) < self._config.parameter_sync_step and self.bus.control.reason is None:
            batch = self._run_iteration(len(sizes), record)
            if not batch.groups:
                break
            sizes.append(len(batch.groups))
        if not sizes:
            return self.bus.control.reason is not None
        if len(sizes) < self._config.parameter_sync_step:
            record.add({"training/partial_iterations": Last(len(sizes))})
        self._unreported = record
        end = StepEnd(
            step=step,
            version=version,
            iterations=len(sizes),
            groups=sum(sizes),
            evicted=() if batch.groups else batch.evicted,
            last=step == self._config.total_steps or self.bus.control.reason is not None or self._data_ended(step + 1),
        )
        self.bus.emit(end, record)
        if self._complete != step:
            raise SyncError(f"step_end of step {step} ended, but its weights were not confirmed")
        self._unreported = None
        return True

    def _run_iteration(self, iteration: int, record: Record) -> Batch:
        """Dispatch, sample and learn. Return an empty batch if the data ended or the run was stopped before that."""
        ports, step, version = self.ports, self._step, self.ports.buffer.version
        self.bus.emit(IterationStart(step=step, version=version, iteration=iteration), record)
        if self.bus.control.reason is not None:
            return Batch()
        started = ports.clock.now()
        with self.bus.timeline.span("sample", step=step, iteration=iteration):
            batch = self._sample()
        sampled = ports.clock.now()
        if not batch.groups:
            return batch
        ages = batch.ages(step, iteration, self._config.parameter_sync_step)  # an error must precede the update
        with self.bus.timeline.span("update", step=step, iteration=iteration):
            learned = to_host(ports.learner.update(batch.groups))
        self._samples.add_trained(batch.groups)
        timing = {
            "timing_s/gen": Sum(sampled - started),
            "timing_s/update_actor": Sum(ports.clock.now() - sampled),
            "training/global_step": Last(step),
        }
        others = (ports.engine.take_metrics(), ports.buffer.take_metrics(), ports.prompts.take_metrics())
        metrics = joined(learned, *others, timing)
        self.bus.emit(IterationEnd(step=step, version=version, iteration=iteration, metrics=metrics, **ages), record)
        return batch

    def _sample(self) -> Batch:
        """Dispatch a mini-batch of prompts and wait for one of groups, which is smaller only if the data ended."""
        size = self._config.ppo_mini_batch_size
        self._dispatcher.request(size)
        batch = self.ports.buffer.sample(size, self._step, self._refill)
        self._dispatcher.request(0)  # dispatch into the freed capacity, so that generation overlaps with learning
        if len(batch.groups) < size and not self._dispatcher.exhausted:
            found = f"{len(batch.groups)} of {size} groups"
            raise StarvedError(f"step {self._step}: {found}, nothing is pending or running, and the data has not ended")
        return batch

    def _refill(self, replacements: Sequence[Replacement]) -> None:
        self.bus.interrupts.process.exit_if_copied()  # a copy has no threads that would end its wait
        self.bus.interrupts.raise_failure()
        self._dispatcher.replace(replacements)
        self.ports.engine.pump()

    def _data_ended(self, next_step: int) -> bool:
        """Return whether `next_step` has nothing to train on."""
        return self._dispatcher.exhausted and not self.ports.buffer.trainable(next_step)

    def _confirm(self, event: WeightsSynced) -> None:
        """Advance the version once the engine holds it, which completes the step."""
        held = self.ports.engine.version
        if event.step == self._complete:
            raise SyncError(f"weights_synced was emitted twice in step {event.step}; a step has one sync")
        if not event.version == event.step == self._step == held:
            raise SyncError(
                f"weights_synced has step {event.step} and version {event.version}, but the loop is in step "
                f"{self._step} and the engine holds version {held}"
            )
        self.ports.buffer.advance(event.version)
        self._complete = event.step

    def _running_part(self) -> Part:
        """Return the plugin whose handler is running, with its limit after a signal."""
        if (handler := self.bus.running) is None:
            return closing_part(self, "the end of the run")
        owner = handler.planned.owner
        return closing_part(owner, str(handler.planned), self._patience_s[id(owner.plugin)])

    def _send_fit_end(self, result: Result) -> None:
        self._state.keep_random_state()
        record = self._unreported if self._unreported and self._unreported.step == self._complete else None
        self.bus.emit(result.event(self.ports.buffer.version, self.bus.times.summary()), record)
