"""Verbs about the hosts of an allocation."""
