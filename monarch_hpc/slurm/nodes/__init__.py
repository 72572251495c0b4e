"""The nodes of the cluster, as far as a user remembers something about them."""
