"""Transfer of device values to the host, one for each device."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from hooktrainer.errors import MetricError
from hooktrainer.metrics import Mean, to_host

TRANSFERS = {"tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"}


class Counted(torch.Tensor):
    """Counts the transfers that wait for a device."""

    transfers: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in TRANSFERS:
            cls.transfers.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture
def transfers() -> list[str]:
    Counted.transfers.clear()
    return Counted.transfers


def counted(value: float | bool | list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype).as_subclass(Counted)


def test_tensors_of_a_device_are_transferred_together(transfers: list[str]) -> None:
    values = {f"key{i}": counted(i) for i in range(20)} | {"list": [counted(1.5), counted([2.5])]}
    host = to_host(values)
    assert host == {f"key{i}": float(i) for i in range(20)} | {"list": [1.5, 2.5]}
    assert transfers == ["tolist"]


def test_tensors_of_one_element_of_any_dtype_and_shape_are_accepted(transfers: list[str]) -> None:
    host = to_host(
        {
            "bf16": counted(0.5, torch.bfloat16),
            "bool": counted(True, torch.bool),
            "int": counted(2**40 + 1, torch.int64),
            "double": counted([0.1], torch.float64),
            "grad": counted(3.0).requires_grad_() * 2,
            "matrix": counted([4.0]).reshape(1, 1),
        }
    )
    assert host == {"bf16": 0.5, "bool": 1.0, "int": 2.0**40 + 1, "double": 0.1, "grad": 6.0, "matrix": 4.0}
    assert {type(value) for value in host.values()} == {float}
    assert transfers == ["tolist"]


def test_other_values_are_unchanged() -> None:
    values = {"metric": Mean(1), "number": 3, "array": np.ones(2), "list": [1, "a"], "tensor": torch.tensor(1)}
    host = to_host(values)
    assert host == values | {"tensor": 1.0, "array": host["array"]}
    assert host["metric"] is values["metric"]
    assert host["array"] is values["array"]


def test_list_keeps_its_order_and_plain_numbers() -> None:
    assert to_host({"x": (1, torch.tensor(2.0), 3.0), "y": [], "z": torch.tensor(4)}) == {
        "x": [1, 2.0, 3.0],
        "y": [],
        "z": 4.0,
    }


@pytest.mark.parametrize("value", [torch.ones(2, 3), [torch.tensor(1.0), torch.ones(2, 3)]])
def test_a_larger_tensor_is_refused_by_name_and_shape(value: object) -> None:
    match = r"metric 'actor/x': expected one real number, found a tensor of shape \(2, 3\)"
    with pytest.raises(MetricError, match=match):
        to_host({"fine": torch.tensor(1.0), "actor/x": value})


@pytest.mark.parametrize("tensor", [torch.tensor([]), torch.tensor(1j)])
def test_complex_or_empty_tensor_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(MetricError, match="expected one real number"):
        to_host({"actor/x": tensor})


def test_no_tensor_and_no_graph_is_kept() -> None:
    loss = torch.ones((), requires_grad=True) * 2
    alive = weakref.ref(loss)
    host = to_host({"loss": loss, "losses": [loss]})
    del loss
    gc.collect()
    assert alive() is None
    assert host == {"loss": 2.0, "losses": [2.0]}


def test_torch_is_not_imported_for_plain_numbers() -> None:
    code = "import sys; from hooktrainer.metrics import to_host; to_host({'x': 1.0})\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
