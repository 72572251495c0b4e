"""Meshes of hosts, procs and actors: arrays with named dimensions, sliced by name and called as one."""
