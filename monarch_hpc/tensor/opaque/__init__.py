"""Objects that live on the ranks, which the program names but does not have."""
