"""Ranks in the program's own process, one thread each, for tests."""
