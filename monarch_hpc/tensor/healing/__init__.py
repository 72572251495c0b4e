"""Healing in the program: versions of the state of a mesh, the decision which one counts, and the way back to it."""
