"""Compose a run: build the components and plugins that a configuration names, check them, and plan their handlers.

Nothing here imports torch, unless code of the user does.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, cast

import attrs

from hooktrainer._util.durations import duration_fault
from hooktrainer.algorithms.arguments import argument_faults
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.registry import FUNCTIONS
from hooktrainer.bus.binding import CONFIGURED_PORTS, port_faults
from hooktrainer.bus.disabled import Disabled
from hooktrainer.bus.handlers import PlacedPlugin, handlers_of
from hooktrainer.bus.plan import RESTORED, Plan
from hooktrainer.config import Config, PluginEntry, Use
from hooktrainer.config.conversion import read_fields, salvaged
from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.fields import key_paths, option_name
from hooktrainer.config.origins import Origins
from hooktrainer.config.scalars import INVALID, Unread
from hooktrainer.config.sections import COMPONENTS, SECTIONS
from hooktrainer.errors import MAX_FAULTS, ConfigError, Fault, PlanError, PortError
from hooktrainer.events import FitStart
from hooktrainer.learner.options import CriticOptions
from hooktrainer.plugin import SPEC_ATTRIBUTE, Plugin, has_state, option_fields, port_fields
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.run.components import absorbing, component, named_port, package_faults, settle_variables
from hooktrainer.run.limits import Sizes, limit_faults
from hooktrainer.run.metric_names import declared_metrics, metric_faults
from hooktrainer.run.model_files import file_faults
from hooktrainer.run.registry import KIND_OF_SECTION, PLUGINS, option_paths


@attrs.define(kw_only=True, eq=False)
class Composition:
    """A checked configuration with the objects that it names; plugins have state, so it is for one run."""

    config: Config
    task: Any
    model: Any
    """Options of the model, which `build` makes."""
    rollout: Any
    """Options of the rollout engine, which `build` makes."""
    plan: Plan
    """The handlers of all plugins in running order."""
    origins: Origins
    """The overrides and plugins that faults name."""
    used: bool = attrs.field(default=False, init=False, repr=False)
    """Whether a trainer was built from this composition."""
    composed_from: Config
    """A copy of the configuration at the time of composing, which shows a later change of its options."""


def composition_of(config: Config) -> Composition:
    """Return the composition that `load_config` built for this configuration, once.

    Later calls compose again, and so does the first one if an option was changed since then.
    """
    composed = config.composed.take()
    unchanged = isinstance(composed, Composition) and composed.composed_from == config
    return cast("Composition", composed) if unchanged else compose(config)


def compose(config: Config | Unread, faults: Faults | None = None) -> Composition:
    """Build each component and plugin, and the plan, once.

    `faults` are those of reading the configuration, which may have failed in parts. Raises `ConfigError` with all of
    them, and with every fault found here.
    """
    if faults is None:
        faults = Faults(elsewhere=cache(lambda: paths_of_keys(_classes_of(config))))
    built = {key: component(KIND_OF_SECTION[key], getattr(config, key, INVALID), faults.at(key)) for key in COMPONENTS}
    plugins = getattr(config, "plugins", INVALID)
    items = plugins if isinstance(plugins, tuple) else getattr(plugins, "items", [INVALID])
    with absorbing(faults.at("task")):
        _check_end(config, built["task"], faults)
    with absorbing(faults.at("rollout")):
        _check_answers(config, built["rollout"], faults)
    _check_functions(config, built["rollout"], faults)
    with absorbing(faults):
        _check_sizes(config, built, faults)
    readable = [item for item in items if isinstance(item, PluginEntry)]
    placed = [(item, _placed(item, config, attrs.evolve(faults, address=item.address))) for item in readable]
    enabled = [entry for item, entry in placed if item.enabled and entry is not None]
    disabled = Disabled(tuple(entry for item, entry in placed if not item.enabled and entry is not None))
    complete = len(enabled) + len(disabled.plugins) == len(items)
    plan = _plan(enabled, disabled, config, faults, complete=complete)
    faults.raise_if_any(SECTIONS)
    config = cast("Config", config)
    return Composition(config=config, plan=plan, origins=faults.origins, composed_from=copy.deepcopy(config), **built)


def require_runnable(composition: Composition) -> None:
    """Raise `ConfigError` unless weights are synced, metrics of options are made, and files and packages are there."""
    faults = Faults(origins=composition.origins)
    try:
        composition.plan.require_sync()
    except PlanError as error:
        faults.absorb(error)
    faults.found.extend(metric_faults(composition.config, composition.plan, composition.task))
    faults.found.extend(file_faults(composition.model))
    for placed in composition.plan.plugins:
        faults.found.extend(package_faults(placed.plugin, placed.address))
    faults.raise_if_any(SECTIONS)


def paths_of_keys(classes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the full path of every key that a configuration can have.

    `classes` has the name of the class for each address (`task`, `plugins.staleness`).
    """
    return key_paths(Config) | option_paths(classes)


def _classes_of(config: Config | Unread) -> dict[str, str]:
    components = {key: use.use for key in COMPONENTS if isinstance(use := getattr(config, key, None), Use)}
    return components | {f"plugins.{entry.name}": entry.use for entry in getattr(config, "plugins", ())}


def _plan(
    enabled: list[PlacedPlugin], disabled: Disabled, config: Config | Unread, faults: Faults, *, complete: bool
) -> Plan:
    try:
        plan = Plan.build(enabled, complete=complete, disabled=disabled)
    except PlanError as error:
        faults.absorb(error)
        return Plan()
    with suppress(AttributeError):  # an option that could not be read
        restores = any(RESTORED in handler.makes for handler in plan.handlers[FitStart])
        if config.run.resume != "off" and not restores:
            fault = Fault("run.resume", f"{shown(str(config.run.resume))}, but no plugin restores a checkpoint.")
            hint = " Add checkpoint to the plugins."
            faults.found.append(disabled.lacking(fault, makes=RESTORED, otherwise=hint))
    return plan


def _check_end(config: Config | Unread, task: Any, faults: Faults) -> None:
    with suppress(AttributeError):  # an option that could not be read
        if config.trainer.total_steps is None and task.size is None:
            text = "missing, and the task never ends; set trainer.total_steps, or limit the data with task.size"
            faults.at("trainer.total_steps").add(f"{text} (the prompts of one epoch) and trainer.total_epochs")


def _check_answers(config: Config | Unread, rollout: Any, faults: Faults) -> None:
    with suppress(AttributeError):
        if rollout.n == 1 and config.algorithm.compares_answers:
            name = config.algorithm.adv_estimator
            text = f"'{name}' compares the answers to a prompt, so that with one answer every advantage is 0"
            faults.at("rollout.n").add(f"{text}; raise rollout.n, or use reinforce_plus_plus or gae")
    with suppress(AttributeError, TypeError):
        buffer, longest = config.algorithm.overlong_buffer, rollout.max_response_length
        if buffer is not None and buffer > longest:
            text = f"a buffer of {buffer} tokens is longer than rollout.max_response_length = {longest}"
            faults.at("algorithm.overlong_buffer").add(text)


def _check_functions(config: Config | Unread, rollout: Any, faults: Faults) -> None:
    """Check the arguments of the functions that `algorithm` names. Functions of the user are imported, with torch."""
    algorithm = getattr(config, "algorithm", None)
    if not isinstance(algorithm, AlgorithmOptions):
        return
    found = list(argument_faults(algorithm))
    critic = getattr(config, "critic", None)
    if any(":" in getattr(algorithm, key) for key in FUNCTIONS) and isinstance(critic, CriticOptions):
        from hooktrainer.learner.functions import Functions

        try:
            longest = getattr(rollout, "max_response_length", None)
            Functions.of(algorithm, has_critic=critic.use != "none", max_response_length=longest)
        except ConfigError as error:
            known = {fault.message for fault in found}
            found += [fault for fault in error.faults if fault.message not in known]
    faults.found.extend(found)


def _check_sizes(config: Config | Unread, built: Mapping[str, Any], faults: Faults) -> None:
    names = [field.name for field in attrs.fields(Sizes) if field.name not in built]
    parts = {**built, **{name: getattr(config, name, INVALID) for name in names}}
    if any(isinstance(part, Unread) for part in parts.values()) or not isinstance(parts["rollout"], SamplingOptions):
        return
    faults.found.extend(limit_faults(Sizes(**parts)))


def _placed(entry: PluginEntry, config: Config | Unread, faults: Faults) -> PlacedPlugin | None:
    """Build and check a plugin; return None if that is impossible. Any error of its class is a fault."""
    with absorbing(faults):
        plugin = _plugin(entry, config, faults)
        if plugin is not None:
            placed = PlacedPlugin(plugin, entry.name, entry.address, entry.priority)
            _read_all(plugin)
            handlers = handlers_of(placed)
            faults.found.extend(port_faults(placed, CONFIGURED_PORTS))
            faults.found.extend([] if entry.enabled else handlers.faults)  # the plan adds those of enabled plugins
            return placed
    return None


def _read_all(plugin: Plugin) -> None:
    """Read each attribute that the plan and the run read later, where an error of it would have no address."""
    cls = type(plugin)
    for field in attrs.fields(cls):
        getattr(plugin, field.name)
    for method, _ in inspect.getmembers_static(cls, lambda value: hasattr(value, SPEC_ATTRIBUTE)):
        getattr(plugin, method)
    with suppress(PortError):  # a property may use a port, which is bound later
        if fault := duration_fault(plugin.patience_s):
            raise ConfigError(f"its patience_s: {fault}")
    has_state(cls)
    declared_metrics(cls)


def _plugin(entry: PluginEntry, config: Config | Unread, faults: Faults) -> Plugin | None:
    """Build a plugin, with defaults for options with faults; return None if that is impossible."""
    cls: type[Plugin] = PLUGINS.resolve(entry.use)
    named = {option_name(field): field for field in port_fields(cls, named=True)}
    options = {key: value for key, value in entry.options.items() if key not in named}
    fields = [field for field in option_fields(cls) if option_name(field) not in named]
    found = read_fields(cls, fields, options, faults, entry.name)
    settle_variables(entry.options, found, fields)
    plugin = found if isinstance(found, Plugin) else salvaged(cls, found)
    for key, field in named.items():
        objects = named_port(cls, field, entry.options, faults.at(key))
        if plugin is not None and (objects or entry.options.get(key) is not None):
            setattr(plugin, field.name, objects)
    if plugin is not None and plugin is found and isinstance(config, Config) and entry.enabled:
        _check(plugin, config, faults)
    return plugin


def _check(plugin: Plugin, config: Config, faults: Faults) -> None:
    before = len(faults)
    try:
        for sentence in _sentences(plugin.check(config)):
            faults.add(sentence if isinstance(sentence, str) else f"check returns sentences, found {shown(sentence)}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (any error of a check is a fault with the plugin's address)
        if not before:  # otherwise a fault that is known may have caused it
            faults.absorb(error)


def _sentences(returned: Any) -> Iterator[Any]:
    yield from [returned] if isinstance(returned, str) else islice(returned or (), MAX_FAULTS)
