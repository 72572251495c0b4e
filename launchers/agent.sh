#!/bin/bash
# Starts the agent of one host of an allocation, as a task of the batch script's step.
# Usage: agent.sh PYTHON [OPTIONS OF monarch_hpc.agent], with the allocation's key on standard input.
# -P: a file such as random.py in the submission directory must not shadow a module.
exec "$1" -P -m monarch_hpc.agent --rank "$SLURM_PROCID" "${@:2}"
