#!/bin/bash
# Starts one proc of an MPI mesh, as a task of the mesh's own step; the proc's order comes from the agent.
# Usage: task.sh PYTHON ALLOCATION RUN MESH RANK..., with the ranks of the step's hosts in order.
export MONARCH_HPC_COOKIE=$2 MONARCH_HPC_RUN_COOKIE=$3 MONARCH_HPC_MESH=$4
python=$1 mesh=("${@:2:3}")
shift $((4 + SLURM_NODEID))
export MONARCH_HPC_HOST=$1
exec "$python" -P -m monarch_hpc.agent.procs.mpi_task "${mesh[@]}" "$1"
