"""Channels: authenticated connections that carry frames between the processes of an allocation."""
