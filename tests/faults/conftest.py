"""The patience of system tests, for faults too, and their failures."""

from __future__ import annotations

from tests.system.conftest import faults, patience

__all__ = ["faults", "patience"]
