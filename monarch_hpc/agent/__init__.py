"""The agent, one process on each host: it starts, watches and ends procs, and carries control messages to them."""
