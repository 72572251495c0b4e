"""Hosts, procs and actors as meshes that are sliced by name and called as one."""
