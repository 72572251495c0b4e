"""What travels between processes: frames, control messages and serialized values. Pure, versioned."""
