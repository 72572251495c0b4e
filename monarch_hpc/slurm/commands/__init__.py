"""Slurm's commands: their arguments, output and error messages."""
