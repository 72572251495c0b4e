"""Records of calls, waits and states, which each process writes to memory that outlives it."""
