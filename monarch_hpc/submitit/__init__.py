"""Submitit's API on allocations of this package: jobs that need no Slurm job each, and functions as batch jobs."""
