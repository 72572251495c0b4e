"""Messages to many actors at once: targets, sending, receiving, merging of answers."""
