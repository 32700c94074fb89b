"""The device of a module: a processor with its own memory, such as a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from attrs.validators import matches_re

from hooktrainer.errors import ConfigError, Fault, line_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_Module = TypeVar("_Module", bound="nn.Module")


def device_option() -> Any:
    """Return a field for the name of a device: `auto`, or as torch writes it."""
    return attrs.field(default="auto", validator=matches_re(r"auto|[a-z]+(:\d+)?"))


def to_device(module: _Module, name: str, address: str) -> _Module:
    """Move a module to a device; `auto` is the first CUDA device, or else the CPU.

    Raises `ConfigError` at the address if the device cannot be used.
    """
    return module.to(_device(name, address))


def _device(name: str, address: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them
        text = f"the device '{name}' cannot be used ({line_of(error)}). Use `auto`, or a device of this machine"
        raise ConfigError([Fault(address, text)]) from None
    return device
