"""Procs on this host: starting them by the zygote or as a step's tasks, and what is known of each."""
