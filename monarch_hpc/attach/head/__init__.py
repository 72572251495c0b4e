"""Conversations of a command with the head of an allocation: its status, and orders to it."""
