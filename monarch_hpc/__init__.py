"""monarch-hpc: program a Slurm allocation from one Python script."""

__version__ = "0.1.0"
