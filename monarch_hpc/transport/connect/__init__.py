"""Connections: dialing, listening, routes around networks that let nothing through, forwarding."""
