"""Long campaigns on a Slurm lab of their own, as an ordinary user of it."""
