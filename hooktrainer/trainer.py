"""The loop: it samples, learns and emits, and knows nothing of plugins, algorithms, engines or modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from hooktrainer._util.random_state import preserved_random_state
from hooktrainer._util.shutdown import attempt, finish, interruptible
from hooktrainer.bus.binding import Ports, bind
from hooktrainer.bus.bus import Bus
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.checkpoint.run_state import LiveState, RunPlace
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import CheckpointError, StarvedError, SyncError
from hooktrainer.events import (
    FitStart,
    IterationEnd,
    IterationStart,
    Priority,
    Status,
    StepEnd,
    StepStart,
    WeightsSynced,
)
from hooktrainer.metrics import Last, Sum
from hooktrainer.metrics.record import Record
from hooktrainer.metrics.transfer import joined, to_host
from hooktrainer.plugin import Plugin
from hooktrainer.ports import Batch, Replacement, Result
from hooktrainer.replay.dispatcher import Dispatcher


class Trainer:
    """Runs the cycle drawn in `hooktrainer.events` over a plugin list and the ports that it works on."""

    def __init__(
        self,
        plugins: Iterable[Plugin | PlacedPlugin],
        ports: Ports,
        config: TrainerConfig,
        place: RunPlace | None = None,
    ) -> None:
        self.bus = Bus.compose(plugins)
        self.bus.plan.require_sync()
        self.bus.guard(WeightsSynced, self._confirm)
        self.bus.around(StepEnd, Priority.EVALUATE, preserved_random_state)
        self.ports = ports
        self._config = config
        self._dispatcher = Dispatcher(ports.prompts, ports.buffer, groups_per_step=config.train_batch_size)
        entries = self.bus.plan.plugins
        self._state = LiveState(entries, ports, self._dispatcher, place or RunPlace(), config.total_steps)
        bind(entries, ports, self._state)
        self._step = 0
        self._complete = 0  # the last step whose weights are confirmed
        self._unreported: Record | None = None
        self._started = False
        self._at_start: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []

    def fit(self) -> Result:
        """Train until the steps are done, the data ends or a plugin stops the run; `fit_end` is always sent."""
        if self._started:
            raise RuntimeError("a trainer fits once; build another one for another run")
        self._started = True
        started = self.ports.clock.now()
        with interruptible() as self.bus.interrupts:
            outcome = attempt(self._run, self.bus.interrupts)
            last = max(self._complete, self._state.step)
            seconds, began = self.ports.clock.now() - started, self._state.step
            result = Result(status=outcome.status, reason=outcome.reason, step=last, began=began, seconds=seconds)
            closing = (self.ports.buffer.close, self.ports.engine.close, *self._at_end)
            finish(outcome.failure, self.bus.interrupts, partial(self._send_fit_end, result), *closing)
        return result

    def at_start(self, action: Callable[[], None]) -> None:
        """Do this once everything is ready, and there is a step to be made."""
        self._at_start.append(action)

    def at_end(self, action: Callable[[], None]) -> None:
        """Do this after everything else, however the run ends."""
        self._at_end.append(action)

    def _run(self) -> tuple[Status, str]:
        self.bus.emit(FitStart())
        if (held := self.ports.engine.version) != (published := self.ports.buffer.version):
            raise SyncError(f"after fit_start engines hold version {held}, not the first one, {published}")
        self._complete = began = self._state.step
        if (over := self._over_since()) is not None:
            return "already_done", over
        for action in self._at_start:
            action()
        if self.bus.control.reason is None:
            self.ports.engine.start(self.ports.buffer)
            warmup = self._config.num_warmup_batches * self._config.ppo_mini_batch_size
            self._dispatcher.request(0 if began else warmup)  # W is once a run
        while True:
            if (done := self._complete) == self._config.total_steps:
                return "completed", f"all {done} steps are done"
            if self.bus.control.reason is not None:
                return "stopped", self.bus.control.reason
            if self._data_ended(done + 1) or not self._run_step(done + 1):
                if began and done == began and not self._state.had_ended:
                    raise CheckpointError(
                        f"no step could be made after step {began}, where the run went on: the data has ended, but "
                        f"total_steps = {self._config.total_steps}. Raise trainer.total_epochs, or lower total_steps"
                    )
                return "already_done" if began and done == began else "completed", "the data has ended"

    def _over_since(self) -> str | None:
        """Why a run that was restored has nothing left to do; None if it has."""
        done, total = self._complete, self._config.total_steps
        if done and total is not None and done >= total:
            return f"all {total} steps are done" if done == total else f"{done} steps are done; total_steps is {total}"
        return "the data has ended" if self._state.had_ended and self._data_ended(done + 1) else None

    def _run_step(self, step: int) -> bool:
        """One cycle; False if the data ended before its first update, and then it never was."""
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
        """Dispatch, sample, learn; a batch without groups if the data has ended or the run was stopped before that."""
        ports, step, version = self.ports, self._step, self.ports.buffer.version
        self.bus.emit(IterationStart(step=step, version=version, iteration=iteration), record)
        if self.bus.control.reason is not None:
            return Batch()
        started = ports.clock.now()
        self._dispatcher.request(self._config.ppo_mini_batch_size)
        batch = ports.buffer.sample(self._config.ppo_mini_batch_size, step, self._refill)
        self._dispatcher.request(0)  # what the capacity did not admit before can overlap with learning
        sampled = ports.clock.now()
        if len(batch.groups) < self._config.ppo_mini_batch_size and not self._dispatcher.exhausted:
            found = f"{len(batch.groups)} of {self._config.ppo_mini_batch_size} groups"
            raise StarvedError(f"step {step}: {found}, nothing is pending or running, and the data has not ended")
        if not batch.groups:
            return batch
        learned = to_host(ports.learner.update(batch.groups))
        timing = {
            "timing_s/gen": Sum(sampled - started),
            "timing_s/update_actor": Sum(ports.clock.now() - sampled),
            "training/global_step": Last(step),
        }
        metrics = joined(learned, ports.engine.take_metrics(), ports.buffer.take_metrics(), timing)
        ages = batch.ages(step, iteration, self._config.parameter_sync_step)
        end = IterationEnd(step=step, version=version, iteration=iteration, metrics=metrics, **ages)
        self.bus.emit(end, record)
        return batch

    def _refill(self, lost: Sequence[Replacement]) -> None:
        self._dispatcher.replace(lost)
        self.ports.engine.pump()

    def _data_ended(self, next_step: int) -> bool:
        """Whether no group is left that could be trained in that step."""
        return self._dispatcher.exhausted and not self.ports.buffer.trainable(next_step)

    def _confirm(self, event: WeightsSynced) -> None:
        """Move the version once every engine holds it; from here on the step stands."""
        held = self.ports.engine.version
        if event.step == self._complete:
            raise SyncError(f"weights_synced was emitted twice in step {event.step}; one step, one sync")
        if not event.version == event.step == self._step == held:
            raise SyncError(
                f"weights_synced says step {event.step}, version {event.version}, but the loop is in step {self._step} "
                f"and engines hold version {held}"
            )
        self.ports.buffer.advance(event.version)
        self._complete = event.step

    def _send_fit_end(self, result: Result) -> None:
        record = self._unreported if self._unreported and self._unreported.step == self._complete else None
        self.bus.emit(result.event(self.ports.buffer.version, self.bus.times.summary()), record)
