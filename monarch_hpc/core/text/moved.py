"""References, in errors, to the differences from Monarch that docs/coming-from.md lists."""

from __future__ import annotations

__all__ = ["row"]


def row(name: str) -> str:
    """Refer to a row of the table of differences, in parentheses."""
    return f"(docs/coming-from.md, differences that stay: {name})"
