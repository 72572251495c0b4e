"""The hosts that a head has: who has joined, why one is lost, and how they are given back."""
