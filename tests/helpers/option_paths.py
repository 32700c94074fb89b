"""Paths of options, such as `optim.lr` and `plugins.checkpoint.every`, and whether they exist."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import attrs

from hooktrainer.config.fields import Fields, init_fields, option_name
from hooktrainer.config.sections import Config, section_classes
from hooktrainer.errors import ConfigError
from hooktrainer.run.registry import KIND_OF_SECTION, PLUGINS, settable_fields

COMPONENT_OF_OPTIONS = {"task": "dataset", "model": "huggingface", "rollout": "thread"}
"""The component of each section that the paths are options of."""


def exists(path: str) -> bool:
    """Whether a configuration may have an option, a section, a plugin or `use` at this path."""
    section, *keys = path.split(".")
    owner: Any
    if section == "plugins" and keys:
        name, *keys = keys
        try:
            owner = PLUGINS.resolve(name)
        except ConfigError:
            return False
        return within(owner, settable_fields(owner), keys)
    if section in COMPONENT_OF_OPTIONS:
        owner = KIND_OF_SECTION[section].resolve(COMPONENT_OF_OPTIONS[section])
        return keys == ["use"] or within(owner, settable_fields(owner), keys)
    if section in section_classes():
        owner = section_classes()[section]
        return within(owner, init_fields(owner), keys)
    return within(Config, init_fields(Config), [section, *keys])


def within(owner: type, fields: Fields, keys: list[str]) -> bool:
    """Whether the keys lead from the options of a class to an option, through options that have their own."""
    if not keys:
        return True
    field = next((field for field in fields if option_name(field) == keys[0]), None)
    if field is None or len(keys) == 1:
        return field is not None
    kind = get_type_hints(owner)[field.name]
    nested = next((one for one in (kind, *get_args(kind)) if attrs.has(one)), None)
    return nested is not None and within(nested, init_fields(nested), keys[1:])
