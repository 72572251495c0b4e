#!/bin/bash
# Starts the agent of one host of an allocation, as a task of the batch script's step.
# Usage: agent.sh PYTHON [OPTIONS OF monarch_hpc.agent], in the allocation's directory.
# The agent reads the key from standard input: it is in no command line, environment, script or log. Not from srun's,
# which passes its own input to one component of a heterogeneous job only.
# -P: a file such as random.py in the submission directory must not shadow a module.
exec "$1" -P -m monarch_hpc.agent --rank "$SLURM_PROCID" "${@:2}" < "${0%/*}/key"
