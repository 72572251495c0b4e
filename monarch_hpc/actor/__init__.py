"""Actors: objects in procs that handle messages one at a time, and the calls between them."""
