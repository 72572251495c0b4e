"""Meshes that stay when their run ends: kept, opened by other programs, and stopped."""
