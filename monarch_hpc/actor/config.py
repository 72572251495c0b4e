"""The one switch of `monarch.actor.config`, so that programs written for Monarch may assign to it.

Assigning has no effect: output lines of procs always carry their rank and host (docs/using.md).
"""

from __future__ import annotations

__all__ = ["prefix_python_logs_with_actor"]

prefix_python_logs_with_actor = True
