"""Connections: dialling, listening, routes through networks that block direct connections, and forwarding."""
