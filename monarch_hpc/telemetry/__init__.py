"""Records of calls, waits and states, in memory that outlives its process; and questions about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.attach.tables.sql import QueryResult
    from monarch_hpc.mesh.program.query import query
    from monarch_hpc.telemetry.shipped import question

_HOMES = {
    "QueryResult": "attach.tables.sql",
    "query": "mesh.program.query",
    "question": "telemetry.shipped",
}

__all__ = ["QueryResult", "query", "question"]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
