"""Cross-memory attach: copies of the memory of processes of this host, which the kernel makes for one side alone."""
