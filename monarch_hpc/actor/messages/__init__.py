"""Messages between actors: packing, addressing, pending answers, remote errors."""
