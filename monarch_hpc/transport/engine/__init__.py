"""The event loop of a process's I/O: one thread polls sockets and UCX, runs timers, and wakes sleeping waiters."""
