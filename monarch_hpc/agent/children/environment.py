"""The environment of a proc: the agent's without its step's variables, then the user's and this package's."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, MESH_COOKIE, RUN_COOKIE, ProcOrder, ProcStart

__all__ = ["proc_environment", "without_step"]

# These mark a process as a task of a step for MPI and Slurm clients; the agent's step is not the proc's.
_STEP_PREFIXES = ("PMI", "SLURM_STEP", "SLURM_PMI", "SLURM_SRUN_", "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_GPU")
_STEP_VARIABLES = frozenset(
    {
        "SLURM_DISTRIBUTION",
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_LOCALID",
        "SLURM_MPI_TYPE",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_TASKS_PER_NODE",
        "SLURM_TASK_PID",
    }
)


def proc_environment(inherited: Mapping[str, str], order: ProcOrder, start: ProcStart) -> dict[str, str]:
    """Return the environment of one proc: the agent's without its step's variables, then *order*'s and *start*'s."""
    environment = dict(inherited) if order.in_step else without_step(inherited)
    environment.update(order.environment)
    if start.num_threads and "OMP_NUM_THREADS" not in order.unset:
        environment.setdefault("OMP_NUM_THREADS", str(start.num_threads))
    for name in order.unset:
        environment.pop(name, None)
    if start.gpus and order.gpu_variable not in order.unset:
        environment[order.gpu_variable] = ",".join(start.gpus)
    environment[COOKIE] = start.allocation
    environment[HOST_COOKIE] = str(start.host_rank)
    environment[RUN_COOKIE] = start.run
    environment[MESH_COOKIE] = str(start.mesh)
    return environment


def without_step(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an agent's environment without the variables of its step."""
    return {
        name: value
        for name, value in inherited.items()
        if name not in _STEP_VARIABLES and not name.startswith(_STEP_PREFIXES)
    }
