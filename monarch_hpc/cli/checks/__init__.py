"""Checks of `monarch-hpc doctor` that concern folders, versions, and the hosts of an allocation."""
