"""Run the validator of one field, so that each field adds its own fault."""

from __future__ import annotations

import re
from typing import Any

import attrs

from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.scalars import Unread
from hooktrainer.errors import message_of


def validate(instance: object, field: attrs.Attribute[Any], faults: Faults) -> None:
    """Add the fault of a field's value if its validator refuses it."""
    value = getattr(instance, field.name)
    if field.validator is None or isinstance(value, Unread):
        return
    try:
        field.validator(instance, field, value)
    except ValueError as error:
        bound = re.match(
            r"'\w+' must be ([<>]=? \S+): ", message_of(error)
        )  # the message of ge, gt, le and lt of attrs
        faults.add(f"expected a value {bound[1]}, found {shown(value)}") if bound else faults.absorb(error)
    except AttributeError as error:
        if not isinstance(instance, Unread):  # otherwise it used an option with a fault
            faults.absorb(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (any error of a validator is a fault of the value)
        faults.absorb(error)
