"""Paths of options, such as `optim.lr` and `plugins.checkpoint.every`, and whether they exist."""

from __future__ import annotations

from hooktrainer.config.fields import Fields, init_fields, option_name
from hooktrainer.config.sections import Config, section_classes
from hooktrainer.errors import ConfigError
from hooktrainer.run.registry import KIND_OF_SECTION, PLUGINS, settable_fields

COMPONENT_OF_OPTIONS = {"task": "dataset", "model": "huggingface", "rollout": "thread"}
"""The component of each section that the paths are options of."""


def exists(path: str) -> bool:
    """Whether a configuration may have an option, a section, a plugin or `use` at this path."""
    section, *keys = path.split(".")
    if section == "plugins" and keys:
        name, *keys = keys
        try:
            fields: Fields = settable_fields(PLUGINS.resolve(name))
        except ConfigError:
            return False
    elif section in COMPONENT_OF_OPTIONS:
        fields = settable_fields(KIND_OF_SECTION[section].resolve(COMPONENT_OF_OPTIONS[section]))
    elif section in section_classes():
        fields = init_fields(section_classes()[section])
    else:
        fields, keys = init_fields(Config), [section, *keys]
    names = {option_name(field) for field in fields} | ({"use"} if section in COMPONENT_OF_OPTIONS else set())
    return not keys or (len(keys) == 1 and keys[0] in names)
