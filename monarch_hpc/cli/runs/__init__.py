"""Runs whose program the head's agent runs, and that outlive the commands that show them."""
