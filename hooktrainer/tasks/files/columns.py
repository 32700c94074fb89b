"""Values of nested columns by dotted names, such as `reward_model.ground_truth` and `choices.0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hooktrainer.errors import did_you_mean

MISSING: Final = object()
"""Returned for a column that a row does not have."""
_MANY: Final = 40


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column; `MISSING` if the row does not have it. A name with a dot may be a column itself."""
    if name in row:
        return row[name]
    found: Any = row
    for part in name.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return MISSING
    return found


def names_in(row: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of all columns of a row."""
    found = []
    for key, value in row.items():
        found.append(key)
        if isinstance(value, Mapping):
            found += [f"{key}.{name}" for name in names_in(value)]
    return found


def missing_column(row: Mapping[str, Any], name: str) -> str:
    """Return the sentence for a column that a row does not have, with the columns that it has."""
    names = names_in(row)
    listed = ", ".join(names[:_MANY]) + (", ..." if len(names) > _MANY else "")
    return f"there is no column '{name}'; there are {listed or 'none'}.{did_you_mean(name, names)}"
