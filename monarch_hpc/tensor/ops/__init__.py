"""Mesh tensors in the program: which function was called, what it makes, and how that is encoded."""
