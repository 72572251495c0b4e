"""The nodes of the cluster: those that a user remembers something about, and those that an allocation takes more of."""
