"""Calls on meshes: endpoints, futures of one or many answers, streams, accumulators."""
