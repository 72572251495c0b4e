"""Registered memory that peers get and put, its keys, and the operations in flight."""
