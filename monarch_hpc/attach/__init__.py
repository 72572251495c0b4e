"""Ways to reach an allocation: its head, its relay, embedded agents, and workers.

The module is callable: ``monarch_hpc.attach(name)`` is `mesh.current.attach` until this package is imported, and then
this, which calls it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = ()


class _Callable(ModuleType):
    """Makes this package callable."""

    def __call__(self, name: str | None = None) -> object:
        """See `mesh.current.attach`."""
        # By name: that module is above this package.
        return importlib.import_module("monarch_hpc.mesh.current").attach(name)


sys.modules[__name__].__class__ = _Callable
