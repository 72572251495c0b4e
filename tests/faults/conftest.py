"""The patience of system tests, for faults too."""

from __future__ import annotations

from tests.system.conftest import patience

__all__ = ["patience"]
