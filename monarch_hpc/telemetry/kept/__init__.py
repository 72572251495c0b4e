"""Records that outlive their processes and the allocation: files in its directory, and the tables that they hold."""
