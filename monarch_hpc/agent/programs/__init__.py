"""Programs that the head's agent runs for clients, which they outlive."""
