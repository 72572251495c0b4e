"""The actor runtime of a process: dispatch, ownership, failures, deadlines."""
