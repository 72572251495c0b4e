"""The procs of a program: their meshes, the causes of their deaths, and what takes a dead one's place."""
