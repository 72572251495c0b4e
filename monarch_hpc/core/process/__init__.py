"""Processes: start, fork, core dumps, end."""
