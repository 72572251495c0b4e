"""Copies of memory that their receivers pull, chunk by chunk, and serve to the next while they arrive."""
