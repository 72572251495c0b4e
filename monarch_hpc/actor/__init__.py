"""Actors: objects in procs that handle messages one at a time, and the calls between them.

`unhandled_fault_hook` is called with the `MeshFailure` that no owner has handled. It is read when a failure happens:
assign a function to do something else than to end the program.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.actor.fault import MeshFailure, end_program

__all__ = ["unhandled_fault_hook"]

unhandled_fault_hook: Callable[[MeshFailure], None] = end_program
