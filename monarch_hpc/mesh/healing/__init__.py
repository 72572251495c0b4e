"""Bringing back what has died: procs, their actors, and the states of these."""
