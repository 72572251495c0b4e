"""Sharded tensors on a rank: DTensors on process groups of ours, and the rules of DTensor that are used."""
