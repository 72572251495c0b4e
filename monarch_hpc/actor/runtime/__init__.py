"""The actor runtime of a process: its actors, what they own, failures, deadlines."""
