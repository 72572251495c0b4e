"""Calls to actor meshes: endpoints, futures of one or many answers, streams, accumulators."""
