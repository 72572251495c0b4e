"""Procs' output: pipes, rate limits, log files and their retention."""
