"""The order to start the procs of a mesh, as the program's process determines it."""

from __future__ import annotations

import sys
from pathlib import Path

from monarch_hpc.config.program import own_import_path
from monarch_hpc.config.schema import ProcsConfig
from monarch_hpc.core.machine.procfs import own_umask
from monarch_hpc.mesh.plan import ProcPlan
from monarch_hpc.wire.control.procs import SpawnProcs

__all__ = ["spawn_order"]


def spawn_order(run: str, mesh: int, plan: ProcPlan, config: ProcsConfig) -> SpawnProcs:
    """Return the order to start all procs of *plan*, with this process's import path, directory and file mode mask."""
    return SpawnProcs(
        run=run,
        mesh=mesh,
        hosts=list(plan.hosts),
        first_rank=[index * plan.per_host for index in range(len(plan.hosts))],
        per_host=plan.per_host,
        num_ranks=len(plan.hosts) * plan.per_host,
        environment={**own_import_path(), **plan.environment},
        preload=[*config.preload, *(module for module in plan.preload if module not in config.preload)],
        sys_path=[path for entry in sys.path if isinstance(entry, str) for path in _resolved(entry)],
        cwd=next(iter(_resolved("")), "/"),
        umask=own_umask(),
        gpu_visible=config.gpu_visible,
        deadline_s=config.start_s,
        unset=list(plan.unset),
        bind=plan.bind or config.bind,
        bindings=[dict(binding) for binding in plan.bindings],
        python=plan.python,
        mpi=config.mpi if plan.mpi else "",
    )


def _resolved(entry: str) -> list[str]:
    """An entry of `sys.path`, absolute; nothing if it depends on a working folder that has been removed."""
    try:
        return [str(Path(entry or ".").resolve())]
    except FileNotFoundError:
        return []
