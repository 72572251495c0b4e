"""Files and folders that other users can neither change nor read, and the package's own files."""
