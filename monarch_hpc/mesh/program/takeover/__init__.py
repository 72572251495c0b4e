"""Taking over a run whose program is lost: its procs, its actors, and the answers that nobody has read."""
