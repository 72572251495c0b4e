"""Captured steps: a function on mesh tensors is recorded, and replayed by one record."""
