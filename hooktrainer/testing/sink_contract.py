"""Checks of the sink contract, for any sink: what a run, a kill and a resume do to the rows in its files."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hooktrainer.errors import ConfigError
from hooktrainer.metrics import with_step
from hooktrainer.ports import RewindableSink, RunInfo, Sink
from hooktrainer.run.registry import SINKS
from hooktrainer.sinks.jsonl import JsonlSink
from hooktrainer.testing.option_contract import require_option_docs

_TOTAL_STEPS: Final = 5
_FIRST_ROW: Final[Mapping[str, Any]] = {"critic/score/mean": 0.5, "response_length": {3.0: 5.0, 16.0: 3.0}}
_ROWS: Final[tuple[Mapping[str, Any], ...]] = (
    _FIRST_ROW,
    {**_FIRST_ROW, "val/score/mean": 0.25},
    {**_FIRST_ROW, "actor/grad_norm": math.nan, "critic/score/max": math.inf},
    {"critic/score/mean": 0.75},
)
"""Rows of four steps: with a histogram, with a key that earlier rows lack, with NaN and infinity, with few keys."""


def check_sink(cls: type[Any], *, steps: Callable[[Path], Sequence[int]] | None = None, **options: Any) -> None:
    """Check a sink class against the contract of `hooktrainer.ports.Sink`. Raises `AssertionError` with a violation.

    - YAML can name the class, its options have docstrings, and `close` may be called twice and before `open`.
    - Rows with histograms, NaN, infinities and new keys can be written.
    - Rows are in the files before `close`, so that a killed process loses none.
    - A resumed run, which opens a new sink in the same directory, keeps the earlier rows.
    - A sink with `rewind` deletes the rows after a step, returns their steps, and accepts these steps again.

    `steps` reads the steps back from a run directory, such as `lambda run: read_steps(run / "scores.csv")`. With it,
    each step must be there once at the end. Without it, files are compared by size. `options` are those of the sink.
    """
    name = cls.__name__
    try:
        SINKS.check(cls, name)
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    require_option_docs(cls)
    with tempfile.TemporaryDirectory() as folder:
        _SinkCheck(cls, Path(folder) / "run", steps, options).check()


class _SinkCheck:
    """The starts of one run, each with a new sink in the same directory, as after a kill and a resume."""

    def __init__(
        self,
        cls: type[Any],
        run: Path,
        steps: Callable[[Path], Sequence[int]] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.cls, self.run, self.steps, self.options = cls, run, steps, options
        self.starts = 0
        run.mkdir()
        self.rows = JsonlSink()  # trackers copy earlier rows from its file

    def check(self) -> None:
        sink = self._new()
        self._call("close, before open,", lambda: sink.close("failed"))
        self._open(sink)
        self._write(sink, 1, 2, 3)
        buffered = self._sizes()
        self._call("close", lambda: sink.close("interrupted"))
        self._call("close, called twice,", lambda: sink.close("interrupted"))
        written = self._sizes()
        assert any(buffered.values()) or not any(written.values()), (
            f"{self._name}.write leaves all rows in memory until close, and a killed process loses them: flush each row"
        )
        resumed = self._new()
        self._open(resumed, step=3)
        self._require_kept(written, "open")
        if isinstance(resumed, RewindableSink):
            deleted = self._rewind(resumed, 3)
            assert not deleted, f"{self._name}.rewind(3) deletes steps {deleted}; rows up to step 3 must be kept"
            self._require_kept(written, "rewind(3)")
        self._write(resumed, 4)
        self._call("close", lambda: resumed.close("completed"))
        self._require_kept(written, "the first write")
        self._require_steps(1, 2, 3, 4)
        if isinstance(resumed, RewindableSink) and any(written.values()):
            self._check_rewind([3, 4])
            self._check_rewind([3])  # the row that was written again replaces the earlier one

    @property
    def _name(self) -> str:
        return self.cls.__name__

    def _new(self) -> Sink:
        sink: Sink = self._call("__init__", lambda: self.cls(**self.options))
        return sink

    def _open(self, sink: Sink, step: int = 0) -> None:
        """Open a sink as the next start of the run, which resumes from `step`."""
        self.starts += 1
        config = {"seed": 0, "trainer": {"total_steps": _TOTAL_STEPS}, "plugins": [{"use": "weight_sync"}]}
        info = RunInfo(
            directory=self.run,
            name="run",
            id="3f2a9c01",
            config=config,
            resumed_step=step,
            start=self.starts,
            total_steps=_TOTAL_STEPS,
        )
        if not issubclass(self.cls, JsonlSink):
            self.rows.open(info)
            if step:
                self.rows.rewind(step)
        self._call("open", lambda: sink.open(info))

    def _check_rewind(self, expected: Sequence[int]) -> None:
        """Resume from step 2 and write step 3 again."""
        sink = self._new()
        self._open(sink, step=2)
        deleted = self._rewind(sink, 2)
        fault = (
            f"{self._name}.rewind(2) returns {deleted}; expected {expected}, the steps of all rows after step 2, "
            "also of rows that an earlier process wrote"
        )
        may_start_anew = not deleted and self.steps is not None  # a tracker begins a new run
        assert deleted == expected or may_start_anew, fault
        if deleted:
            self._require_steps(1, 2)
        self._write(sink, 3)
        self._call("close", lambda: sink.close("completed"))
        assert deleted or self.steps is None or [*self.steps(self.run)] == [1, 2, 3], fault
        self._require_steps(1, 2, 3)

    def _rewind(self, sink: Any, step: int) -> list[int]:
        return [*self._call(f"rewind({step})", lambda: sink.rewind(step))]

    def _write(self, sink: Sink, *steps: int) -> None:
        for step in steps:
            row = with_step(_ROWS[step - 1], step)
            if not issubclass(self.cls, JsonlSink):
                self.rows.write(step, row)
            self._call(f"write, at step {step} with {dict(row)},", partial(sink.write, step, row))

    def _call(self, method: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            raise AssertionError(f"{self._name}.{method} raises {type(error).__name__}: {error}") from error

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self._files()}

    def _files(self) -> list[Path]:
        ours = None if issubclass(self.cls, JsonlSink) else self.rows.path
        return [
            path for path in sorted(self.run.rglob("*")) if path.is_file() and path != ours and not path.is_symlink()
        ]

    def _require_kept(self, before: Mapping[Path, int], method: str) -> None:
        """Check that no file became shorter, as one does that is opened with mode "w"."""
        now = self._sizes()
        for path, size in before.items():
            assert now.get(path, 0) >= size, (
                f"{self._name}: {method} of a resumed run deletes earlier rows: {path.relative_to(self.run)} had "
                f'{size} bytes and has {now.get(path, 0)}. Open files with mode "a", not "w"'
            )

    def _require_steps(self, *expected: int) -> None:
        if self.steps is not None:
            found = [*self.steps(self.run)]
            assert found == [*expected], f"{self._name} has rows of the steps {found}; expected {[*expected]}"
