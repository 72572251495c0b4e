"""Tables of an allocation, read from its processes, its head, its directory and Slurm; and SQL over them."""
