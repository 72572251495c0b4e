"""Procs on this host: started from the zygote or as tasks of a step; and their state and records."""
