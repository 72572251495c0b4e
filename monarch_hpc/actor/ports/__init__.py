"""Ports and channels: streams of messages between actors outside of calls."""
