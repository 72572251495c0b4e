"""Views of the records of many processes: calls and waits, statistics, stacks, traces. Pure."""
