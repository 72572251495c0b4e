"""Child processes: reaping, sweeping leftovers, detecting stopped ones, and their environment."""
