"""Random traffic between actors that is written down, and the laws of calls, by which it is checked."""

from __future__ import annotations

from monarch_hpc.testing.history.checker import Violation, check
from monarch_hpc.testing.history.load import read_history

__all__ = ["Violation", "check", "read_history"]
