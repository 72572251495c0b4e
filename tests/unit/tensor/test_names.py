"""Names of torch's functions lead back to the same functions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.ops.names import name_of, resolve, shown_name

TRANSPOSED: Any = torch._C.TensorBase.__dict__["T"].__get__


def test_every_function_that_can_be_intercepted_is_found_by_its_name() -> None:
    missed = []
    for functions in torch.overrides.get_overridable_functions().values():
        for function in functions:
            name = name_of(function)
            if not name or resolve(name) != function:
                missed.append(torch.overrides.resolve_name(function) or repr(function))
    # Setters of properties are not operations.
    assert [name for name in missed if "__set__" not in name] == ["torch.Tensor.__cuda_array_interface__.__get__"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.add, "Tensor:add"),
        (torch.nn.functional.relu, "torch.nn.functional:relu"),
        (torch.linalg.vector_norm, "torch.linalg:vector_norm"),
        (TRANSPOSED, "Tensor:T.__get__"),
        (torch.ops.aten.add.Tensor, "op:aten.add.Tensor"),
        (lambda x: x, ""),
    ],
)
def test_names(function: Any, name: str) -> None:
    assert name_of(function) == name


def test_names_for_people() -> None:
    assert shown_name(TRANSPOSED) == "Tensor.T"
    assert "test_names_for_people" in shown_name(test_names_for_people)
    with pytest.raises(AttributeError):
        resolve("torch:no_such_function")
