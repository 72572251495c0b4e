"""All tables, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_hpc.wire.tables.calls import CALLS
from monarch_hpc.wire.tables.clocks import CLOCKS
from monarch_hpc.wire.tables.history import HANDLED, METRICS, RECORDERS, SENDS, SPANS, TRANSFERS
from monarch_hpc.wire.tables.keeping import KEEPING
from monarch_hpc.wire.tables.memory import MEMORY
from monarch_hpc.wire.tables.overview import OVERVIEW
from monarch_hpc.wire.tables.procs import PROCS
from monarch_hpc.wire.tables.profiles import PROFILES
from monarch_hpc.wire.tables.samples import SAMPLES
from monarch_hpc.wire.tables.schema import Table
from monarch_hpc.wire.tables.stacks import STACKS

__all__ = ["TABLES"]

_ALL: list[Table[Any]] = [  # each has rows of its own type
    *(CALLS, CLOCKS, HANDLED, MEMORY, METRICS, PROCS, PROFILES, RECORDERS, SENDS, SPANS, STACKS, TRANSFERS),
    KEEPING,
    *OVERVIEW.values(),
    *SAMPLES.values(),
]

TABLES: Mapping[str, Table[Any]] = {table.name: table for table in sorted(_ALL, key=lambda table: table.name)}
