"""The succession of the head: voices and electorates, the search for the head, and what it is told again."""
