"""Messages to many actors at once: targets, sending, receiving, and the combining of their answers."""
