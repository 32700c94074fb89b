"""The settings of a `config.yaml`, by address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

_FILE: Final = re.compile(r"^/.*/(?=[^/]+\.py:\w+$)")


def settings_of(text: str) -> dict[str, Any]:
    """Return every setting by its address; plugins are addressed by name.

    Raises `ValueError` if the text is not the configuration of a run.
    """
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"this is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("this is not a mapping of sections")  # noqa: TRY004 (the content of a file)
    return dict(_flat(data))


def _flat(value: Any, address: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{address}.{key}" if address else str(key))
    elif isinstance(value, list) and all(isinstance(item, dict) and "use" in item for item in value):
        for item in value:
            yield from _flat(item, f"{address}.{_without_directory(item.get('name') or item['use'])}")
    else:
        yield address, _without_directory(value)


def _without_directory(value: Any) -> Any:
    """Return `file.py:Name` for the absolute path of a file, which differs after a directory was moved."""
    if isinstance(value, list):
        return [_without_directory(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_directory(item) for key, item in value.items()}
    return _FILE.sub("", value) if isinstance(value, str) else value
