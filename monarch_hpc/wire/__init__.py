"""Formats of all data between processes: frames, control messages, serialized values. Pure, versioned."""
