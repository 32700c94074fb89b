"""The settings of a run that differ from their defaults."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any, Final

import attrs

from hooktrainer.config.fields import default_of, init_fields, option_name
from hooktrainer.config.sections import COMPONENTS, Config, section_classes
from hooktrainer.run.history import RunHistory
from hooktrainer.run.registry import KIND_OF_SECTION, settable_fields
from hooktrainer.run.report.groups import shown

_PLACE: Final = "run."
_RESERVED: Final = ("use", "name", "enabled", "priority")
_REQUIRED: Final = "required"


@attrs.frozen
class Setting:
    """A setting that was chosen."""

    address: str
    value: str
    default: str
    """Empty if it is not known, as for an option of a class of the user."""


def chosen_settings(run: RunHistory) -> list[Setting]:
    """Return the settings that differ from their defaults, without those of the run directory."""
    found = []
    for address, value in run.settings.items():
        default = _default(run, address)
        if not address.startswith(_PLACE) and (default is None or shown(value) != default):
            found.append(Setting(address, shown(value), default or ""))
    return found


def _default(run: RunHistory, address: str) -> str | None:
    """Return the default as it is written in YAML; None if it is not known."""
    section, _, rest = address.partition(".")
    plugin, _, option = rest.partition(".") if section == "plugins" else ("", "", rest)
    if section in COMPONENTS or section == "plugins":
        use = run.settings.get(f"{section}.{plugin}.use" if plugin else f"{section}.use")
        return _of_class(section, str(use)).get(option)
    return _of_sections().get(address)


@cache
def _of_sections() -> dict[str, str]:
    found = {field.name: shown(default_of(field)) for field in init_fields(Config) if _is_plain(default_of(field))}
    for section, cls in section_classes().items():
        found |= {f"{section}.{key}": default for key, default in _defaults(init_fields(cls)).items()}
    return found


@cache
def _of_class(section: str, use: str) -> dict[str, str]:
    """Return the defaults of the options of a registered class. Code of users is not imported for a report."""
    if ":" not in use and section in KIND_OF_SECTION:
        with suppress(Exception):  # the plugin of a distribution that is not installed here
            return _defaults(settable_fields(KIND_OF_SECTION[section].resolve(use)))
    return {}


def _defaults(fields: Any) -> dict[str, str]:
    found = {}
    for field in fields:
        default = default_of(field)
        if default is attrs.NOTHING:
            found[option_name(field)] = _REQUIRED
        elif _is_plain(default):
            found[option_name(field)] = shown(list(default) if isinstance(default, tuple) else default)
    return found


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list, tuple))
