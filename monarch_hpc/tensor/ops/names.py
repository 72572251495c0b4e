"""Names of torch's functions: the controller names the function that it intercepted, the worker looks it up."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

__all__ = ["name_of", "resolve", "shown_name"]

_MODULES = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.functional",
    "torch.autograd",
    "torch.nn.init",
)


def name_of(function: Any) -> str:
    """The name by which `resolve` finds *function*; empty if there is none, so that it must travel itself."""
    if isinstance(function, torch._ops.OpOverload):
        return f"op:{function}"
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if (
        name == "__get__" and owner is not None and hasattr(owner, "__name__")
    ):  # the getter of a property, such as Tensor.T
        return _found(f"Tensor:{owner.__name__}.__get__", function)
    if not isinstance(name, str) or not name:
        return ""
    # Python's operators are wrappers that bear the names of methods: __ipow__ is called pow_.
    found = ""
    for alias in (name, f"__{name}__", f"__i{name.rstrip('_')}__"):
        found = found or _found(f"Tensor:{alias}", function)
    for module in _MODULES:
        # Built-in functions of some modules are called after them: linalg_norm.
        own = name.removeprefix(f"{module.rpartition('.')[2]}_")
        found = found or _found(f"{module}:{own}", function) or _found(f"{module}:{name}", function)
    return found


def _found(name: str, function: Any) -> str:
    try:
        return name if resolve(name) == function else ""
    except AttributeError:
        return ""


def resolve(name: str) -> Any:
    """The function called *name*.

    Raises:
        AttributeError: this torch has no such function.
    """
    place, _, path = name.partition(":")
    if place == "op":
        namespace, operator, overload = path.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    found: Any = torch.Tensor if place == "Tensor" else _module(place)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@cache
def _module(name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(name)
    return found


def shown_name(function: Any) -> str:
    """The name of *function* for people."""
    name = name_of(function).replace(":", ".").removesuffix(".__get__")
    return name or getattr(function, "__qualname__", "") or repr(function)
