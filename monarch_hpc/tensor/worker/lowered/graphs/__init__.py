"""Runs of operators of a captured step that are replayed as one graph of a device."""
