"""torchrun's environment on a mesh, for programs that call `torch.distributed` themselves. As `monarch.spmd`.

The module is callable: ``monarch_hpc.spmd(procs).init()`` also sets up the process group, see `mesh.scripts.spmd`.
"""

from __future__ import annotations

import sys
from types import ModuleType

from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.scripts.spmd import Spmd, spmd
from monarch_hpc.spmd.elastic import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch_hpc.tools.network import AddrType

__all__ = ["AddrType", "SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]


class _Callable(ModuleType):
    """Makes this package callable: `monarch_hpc.spmd` is the function until this package is imported, and then this."""

    def __call__(self, procs: ProcMesh) -> Spmd:
        """See `mesh.scripts.spmd.spmd`."""
        return spmd(procs)


sys.modules[__name__].__class__ = _Callable
