"""Packages that offer names of other modules and load each at its first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

__all__ = ["lazy_face"]


def lazy_face(
    package: str, homes: Mapping[str, str], exported: Sequence[str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of *package*.

    Args:
        package: the dotted name of the package.
        homes: the module of each lazy name, below `monarch_hpc`; ``module:`` if the name stands for the module itself.
        exported: the package's `__all__`.
    """

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from monarch_hpc.core.process.imports import uncollected  # late: the face itself shall load nothing

        with uncollected():
            module = importlib.import_module(f"monarch_hpc.{home.removesuffix(':')}")
        value: object = module if home.endswith(":") else getattr(module, name)
        vars(sys.modules[package])[name] = value  # the next access does not come here
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exported})

    return load, names
