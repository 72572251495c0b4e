"""The tables of `monarch-hpc status` whose rows all processes of an allocation report."""
