"""Replays of captured steps below DTensor and autograd: the operators on this rank's parts of tensors, one by one."""
