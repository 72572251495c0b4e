"""Resources of this host: what Slurm granted, cgroups, CPU binding, shared memory."""
