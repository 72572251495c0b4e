"""The allocation's directory: its files, their schemas, and their writers."""
