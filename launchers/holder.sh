#!/bin/bash
# Runs the script of an allocation that salloc holds, as a step on the first host, and then gives the job back: without a
# batch script it would last until its time limit.
# Usage: holder.sh DIRECTORY HOSTS NUM_HOSTS NUM_CPUS, the last three of the whole job.
export SLURM_JOB_NODELIST=$2 SLURM_JOB_NUM_NODES=$3 SLURM_NNODES=$3
unset SLURM_JOB_CPUS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID "${!SLURM_STEP@}"
if [ "$3" -gt 0 ] && [ $(($4 % $3)) = 0 ]; then
    export SLURM_JOB_CPUS_PER_NODE=$(($4 / $3))
fi
trap : TERM # job.sh decides when it ends
bash "$1/job.sh" &
while :; do
    wait $!
    status=$?
    kill -0 $! 2> /dev/null || break
done
scancel "$SLURM_JOB_ID"
exit "$status"
