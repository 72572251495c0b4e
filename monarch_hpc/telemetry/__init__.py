"""Records of calls, waits and states, in memory that outlives its process; and questions about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.attach.sql import QueryResult
    from monarch_hpc.mesh.program.query import query

_HOMES = {
    "QueryResult": "attach.sql",
    "query": "mesh.program.query",
}

__all__ = ["QueryResult", "query"]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
