"""A second device without hardware: its tensors lie in host memory, and every transfer is recorded.

Operations on it compute the same values as on the CPU. As with a real device, tensors of two devices cannot be mixed,
and a value that Python reads is a transfer to the host, for which a real device would have to wait.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME: Final = "simulated"
_READS: Final = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
_setup_done = False


class SimulatedTensor(torch.Tensor):
    """A tensor on the device, with its values in `host`."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> Self:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=f"{NAME}:0",
            requires_grad=False,
        )
        tensor.host = host
        return tensor

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied: torch.Tensor = memo.setdefault(id(self), self.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copied = memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad)
        return copied

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, [])


class _Backend(_DummyBackendModule):
    """What torch asks of the module of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class SimulatedDevice(TorchDispatchMode):
    """Runs what is on the device, and records transfers to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        """Where values were transferred to the host, one for each transfer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, self.reads)


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    """Make the device known, and run what is on it in this thread until the block ends."""
    global _setup_done  # noqa: PLW0603 (torch registers a device once in a process)
    if not _setup_done:
        _setup_privateuseone_for_python_backend(NAME, _Backend())
        _setup_done = True
    before = torch.__future__.get_swap_module_params_on_conversion()
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(data, device=...)` goes through the CPU
    torch.__future__.set_swap_module_params_on_conversion(True)  # as on a real device, a moved parameter stays the same
    try:
        # Without threads of its own for a device that torch did not know when the first backward pass started.
        with torch.autograd.set_multithreading_enabled(False), SimulatedDevice() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)
        torch.__future__.set_swap_module_params_on_conversion(before)


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any], reads: list[str]) -> Any:
    flat = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    simulated = [leaf for leaf in tensors if isinstance(leaf, SimulatedTensor)]
    to = kwargs.get("device")
    to_device = to is not None and torch.device(to).type == NAME
    if not simulated and not to_device:
        return func(*args, **kwargs)
    copies = func in {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
    if not copies and any(tensor.dim() and not isinstance(tensor, SimulatedTensor) for tensor in tensors):
        raise RuntimeError(f"{func}: tensors on {NAME} and on cpu are mixed")
    leaves = (to is not None and not to_device) or (copies and tensors and not isinstance(tensors[0], SimulatedTensor))
    if func in _READS or (leaves and simulated):
        reads.append("".join(traceback.format_stack(limit=30)[:-2]))
    given, named = pytree.tree_map_only(SimulatedTensor, lambda tensor: tensor.host, (args, kwargs))
    if to_device:
        named["device"] = torch.device("cpu")
    result = func(*given, **named)
    if leaves and not to_device:
        return result
    out = pytree.tree_map_only(torch.Tensor, SimulatedTensor, result)
    return return_and_correct_aliasing(func, args, kwargs, out)
