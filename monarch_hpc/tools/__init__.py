"""Addresses of hosts. As `monarch.tools`."""
