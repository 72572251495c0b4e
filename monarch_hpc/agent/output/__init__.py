"""Output of procs: pipes, rate limits, log files and their retention."""
