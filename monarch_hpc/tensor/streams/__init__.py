"""Streams: queues of operations on the ranks that run beside each other, and lend each other tensors."""
