"""This machine: its processes, network interfaces, names and GPUs."""
