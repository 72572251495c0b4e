"""`monarch.actor.config` has one switch, which moved programs may assign to.

Lines of procs always say which rank and host they come from (docs/using.md); assigning here changes nothing.
"""

from __future__ import annotations

__all__ = ["prefix_python_logs_with_actor"]

prefix_python_logs_with_actor = True
