"""Resources of this host: Slurm's grant, cgroups, CPU binding, shared memory."""
