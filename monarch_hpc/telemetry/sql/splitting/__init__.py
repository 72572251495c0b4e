"""Splits questions in SQL into texts for hosts, for those that merge, and for the answer."""
