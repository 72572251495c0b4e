"""Verbs about allocations that were taken: their choice, their queue, their time and size."""
