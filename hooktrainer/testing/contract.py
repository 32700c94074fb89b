"""Checks of the plugin contract, for any plugin."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer.bus.binding import Ports
from hooktrainer.bus.handlers import PlacedPlugin, handlers_of
from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.checkpoint.run_state import RunPlace
from hooktrainer.config import TrainerConfig
from hooktrainer.config.fields import bare_attributes
from hooktrainer.errors import CheckpointError, PlanError
from hooktrainer.events import EVENTS, FitStart
from hooktrainer.plugin import Plugin, Priority, port_fields, state_fields
from hooktrainer.ports import KLControl, ModelExport, Snapshot
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.testing.fake_bus import STANDARD, FakeBus
from hooktrainer.testing.fake_engine import FakeEngine, FakeTransport
from hooktrainer.testing.fakes import (
    FakeBuffer,
    FakeKLControl,
    FakeLearner,
    FakeModelExport,
    FakePrompts,
    FakeSink,
    ManualClock,
)
from hooktrainer.testing.option_contract import require_option_docs
from hooktrainer.trainer import Trainer
from hooktrainer.weight_sync.checksums import checksum

_STATE: Final = "state"
_TIMES: Final = ("timing_s/", "timing_per_token_ms/", "perf/")


def check_plugin(cls: type[Plugin], **options: Any) -> None:
    """Check a plugin class against the contract. Raises `AssertionError` with the first violation.

    - The class is built from its defaults; `options` are values for options without one.
    - It attaches to a fake bus.
    - The class and every option have a docstring; an attribute without a type is no option.
    - Its state is restored from a checkpoint without a change.
    - Two plugins share no list, dict or set that is the default of an option.
    """
    if not isinstance(cls, type):
        name = type(cls).__name__
        raise TypeError(f"check_plugin takes a class and its options: check_plugin({name}), found {cls!r}")
    assert "__attrs_attrs__" in vars(cls), f"{cls.__name__} is no attrs class: add @attrs.define(kw_only=True)"
    assert (cls.__doc__ or "").strip(), f"{cls.__name__} has no docstring"
    require_option_docs(cls)
    for key, value in bare_attributes(cls).items():
        text = (
            f"{cls.__name__}: '{key}' has no type, so it is not an option; annotate it, {key}: {type(value).__name__}"
        )
        assert key.isupper(), f"{text} = {value!r}, or write a constant in capital letters"
    plugin = cls(**options)
    _check_shared(plugin, cls(**options), options)
    try:
        FakeBus(plugin, provides=_needed(plugin))
    except PlanError as error:
        raise AssertionError(f"{cls.__name__} does not attach: {error}") from error
    _check_state(plugin, cls(**options))


def _check_shared(first: Plugin, second: Plugin, given: Mapping[str, object]) -> None:
    """Check that two plugins share no mutable default."""
    cls = type(first)
    for field in attrs.fields(cls):
        value = getattr(first, field.name, None)
        shared = isinstance(value, (list, dict, set, bytearray, deque)) and value is getattr(second, field.name, None)
        assert not shared or field.alias in given, (
            f"{cls.__name__}: all plugins of the class share the default of '{field.name}', {value!r}; "
            f"write {field.name} = attrs.field(factory={type(value).__name__})"
        )


def _needed(plugin: Plugin) -> dict[Any, Any]:
    """Return the `provides` of a fake bus: all data and events that the plugin uses and does not make."""
    handlers = handlers_of(PlacedPlugin.of(plugin, 0)).handlers
    made = {key for handler in handlers for key in handler.makes}
    needed = dict.fromkeys(need.removesuffix("?") for handler in handlers for need in handler.needs)
    known = {*STANDARD, "iteration.metrics"}
    heard = {handler.event for handler in handlers if handler.event not in EVENTS} - {
        kind for handler in handlers for kind in handler.emits
    }
    data = {key: None if key in known else (FitStart, Priority.PREPARE) for key in needed if key not in made}
    return {**data, **dict.fromkeys(heard)}


def _check_state(plugin: Plugin, fresh: Plugin) -> None:
    """Compare the state that a checkpoint saves before and after a restart."""
    cls = type(plugin).__name__
    before = _saved(plugin)
    fresh.load_state_dict(decode(before, _STATE))
    kept, again = _content(before), _content(_saved(fresh))
    for key in sorted(kept.keys() | again.keys()):
        same = key in kept and key in again and kept[key] == again[key]
        assert same, f"{cls}: the state '{key}' changes over a restart"
    names = {field.name.lstrip("_") for field in state_fields(type(plugin))}
    assert kept.keys() == names, f"{cls}: state_dict gives {sorted(kept)}, declared is {sorted(names)}"


def _saved(plugin: Plugin) -> Snapshot:
    try:
        return encode(0, {_STATE: plugin.state_dict()})
    except CheckpointError as error:
        raise AssertionError(f"{type(plugin).__name__}: {error}") from error


def _content(saved: Snapshot) -> Mapping[str, object]:
    """Return the saved state by field, with tensors and arrays as values and sets in a fixed order."""

    def read(tree: Any) -> Any:
        match tree:
            case {"$tensor": name}:
                tensor = saved.tensors[name]
                return "$tensor", str(tensor.dtype), tuple(tensor.shape), checksum(tensor)
            case {"$array": name} | {"$scalar": name}:
                array = saved.arrays[name]
                return [*tree], array.dtype.str, array.shape, array.tobytes()  # NaN equals NaN
            case {"$set": members} | {"$frozenset": members}:
                return [*tree], sorted(repr(read(member)) for member in members)
            case dict():
                return {key: read(value) for key, value in tree.items()}
            case list():
                return [read(item) for item in tree]
        return tree

    return {key: read(value) for key, value in saved.parts[_STATE].items()}


def check_order_independent(
    plugins: Sequence[str | Mapping[str, object]],
    *,
    metrics: Callable[[int], Mapping[str, object]] = lambda update: {"actor/pg_loss": float(update)},
    steps: int = 2,
    iterations: int = 2,
) -> None:
    """Run every permutation of a YAML plugin list on fakes. Raises `AssertionError` if the order of the list matters.

    `plugins` are entries as in YAML, not objects: `"weight_sync"` or `{"use": "my_lab.stop:EarlyStop", "limit": 0.2}`.
    All rows must be equal, except for times. The plans may differ only in the order of handlers of equal priority.

    `file.py:Class` is relative to the directory of the file that calls this function.

    `metrics` returns the metrics that the fake learner reports in an update, counted from 1. Include the keys that
    your plugins read: `metrics=lambda update: {"actor/ppo_kl": 0.1 * update}`. Sinks in the list are replaced by fakes.
    """
    for entry in plugins:
        if isinstance(entry, (Plugin, type)):
            name = entry.__name__ if isinstance(entry, type) else type(entry).__name__
            text = f'such as "weight_sync" or {{"use": "package.module:{name}"}}'
            raise TypeError(f"check_order_independent takes entries as in YAML, {text}; found {entry!r}")
    folder = Path(sys._getframe(1).f_code.co_filename).parent
    plugins = [_absolute(entry, folder) for entry in plugins]
    expected_plan, expected_rows = _run(plugins, metrics, steps, iterations)
    for order in itertools.permutations(plugins):
        tied, rows = _run(order, metrics, steps, iterations)
        assert tied == expected_plan, f"the plans differ:\n  {[*plugins]}\n  {[*order]}"
        difference = _difference(expected_rows, rows)
        assert difference is None, f"the rows differ in {difference}:\n  {[*plugins]}\n  {[*order]}"


def _absolute(entry: str | Mapping[str, object], folder: Path) -> str | Mapping[str, object]:
    """Resolve `file.py:Class` of an entry against a directory."""
    name = entry if isinstance(entry, str) else entry.get("use")
    if not isinstance(name, str) or not name.partition(":")[0].endswith(".py"):
        return entry
    found = str(folder / name)
    return found if isinstance(entry, str) else {**entry, "use": found}


def _run(
    plugins: Sequence[object], metrics: Callable[[int], Mapping[str, object]], steps: int, iterations: int
) -> tuple[object, list[dict[str, object]]]:
    sizes = {"train_batch_size": iterations, "ppo_mini_batch_size": 1, "parameter_sync_step": iterations}
    config = TrainerConfig(total_steps=steps, **sizes)
    named = {"task": "sort_digits", "model": "decoder", "rollout": "inline"}  # never built: the ports are fakes
    entries = composition_of(
        config_from_mapping({**named, "trainer": attrs.asdict(config), "plugins": [*plugins]})
    ).plan.plugins
    sinks = [sink for entry in entries for sink in _with_fake_sinks(entry.plugin)]
    with tempfile.TemporaryDirectory() as directory:
        place = RunPlace(directory=Path(directory))
        trainer = Trainer(entries, fake_ports(learner=FakeLearner(metrics)), config, place)
        tied = trainer.bus.plan.order_up_to_ties()
        try:
            trainer.fit()
        except KeyError as error:
            given = ", ".join(metrics(1))
            error.add_note(f"the fake learner reports {given}; add the keys that are read: metrics=lambda update: ...")
            raise
    return tied, [{"step": step, **row} for sink in sinks for step, row in sink.rows]


def _with_fake_sinks(plugin: Plugin) -> Iterator[FakeSink]:
    """Replace the sinks of a plugin by fakes."""
    for field in port_fields(type(plugin), named=True):
        fakes = [FakeSink() for _ in getattr(plugin, field.name)]
        setattr(plugin, field.name, tuple(fakes))
        yield from fakes


def _difference(first: Sequence[Mapping[str, object]], second: Sequence[Mapping[str, object]]) -> str | None:
    if len(first) != len(second):
        return f"their number, {len(first)} and {len(second)}"
    for one, other in zip(first, second, strict=True):
        for key in sorted(one.keys() | other.keys()):
            if not key.startswith(_TIMES) and repr(one.get(key)) != repr(other.get(key)):
                return f"step {one['step']}, {key}: {one.get(key)} and {other.get(key)}"
    return None


def fake_ports(**given: Any) -> Ports:
    """Return the ports of a run with a fake for each one that is not given."""
    fakes: dict[str, Any] = {
        "learner": FakeLearner(),
        "engine": FakeEngine(),
        "buffer": FakeBuffer(),
        "transport": FakeTransport(),
        "prompts": FakePrompts(),
        "clock": ManualClock(),
        "extra": {KLControl: FakeKLControl(), ModelExport: FakeModelExport()},
    }
    return Ports(**{**fakes, **given})
