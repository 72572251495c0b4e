"""Threads and event loops on which actors run."""
