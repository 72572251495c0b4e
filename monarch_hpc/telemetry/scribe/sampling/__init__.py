"""Samples of a host: its procs, memory, GPUs and network ports."""
