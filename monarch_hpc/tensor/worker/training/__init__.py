"""Modules and optimizers that live on the ranks, their gradients, and checkpoints."""
