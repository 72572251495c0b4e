"""Sharded tensors in the program: one value, of which each rank of a mesh holds a part."""
