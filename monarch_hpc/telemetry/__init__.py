"""What a process leaves behind while it works: calls, waits and states, in memory that outlives it."""
