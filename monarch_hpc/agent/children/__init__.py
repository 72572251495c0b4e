"""Child processes: reaping, sweeping leftovers, detection of stopped ones, their environment."""
