"""Text: units, host lists, and descriptions of users' objects."""
