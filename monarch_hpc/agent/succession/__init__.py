"""The succession of the head: voices and electorates, the search for the head, and the reports to a new one."""
