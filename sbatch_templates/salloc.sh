#!/bin/bash
# Holds the monarch-hpc allocation '@{name}' in a queue that takes no batch job: salloc asks for the hosts, and one srun starts
# the allocation's script, job.sh, on the first of them. By hand, on a login node: 'setsid bash THIS-FILE &'.
#
# Unlike a batch job, it needs this login node until its agents are ready. If this script dies while the job waits, the
# hosts are granted to nobody. If srun is told to end here, job.sh ends with it, and the agents go on until their end.

umask 077
directory=@{directory}
flags=(
    @{flags}
)

# The job's number, or the reason why there is none, is in this file; monarch-hpc reads it.
salloc --no-shell "${flags[@]}" < /dev/null > "$directory/salloc.out" 2>&1
status=$?
job=$(sed -n 's/^salloc: Granted job allocation \([0-9]*\)$/\1/p' "$directory/salloc.out")
if [ "$status" != 0 ] || [ -z "$job" ]; then
    echo "$status" > "$directory/.refused.$$" && mv "$directory/.refused.$$" "$directory/salloc.refused"
    exit 1
fi

# A step that is started from outside does not get to know its whole job: hosts, their number, CPUs of all.
IFS='|' read -r hosts num_hosts num_cpus < <(squeue --jobs="$job" --noheader --format='%N|%D|%C')
srun --jobid="$job" --job-name=script --nodes=1 --ntasks=1 --relative=0 --overlap --mem=0 --cpu-bind=none --mpi=none \
    --no-kill --export=ALL --quiet --open-mode=append --output=@{output} \
    bash "$directory/holder.sh" "$directory" "$hosts" "$num_hosts" "$num_cpus" < /dev/null >> "$directory/salloc.out" 2>&1

# job.sh gives the job back at its end. If it has not begun, nothing else will.
ls "$directory"/attempts/*/granted.json > /dev/null 2>&1 || scancel "$job"
