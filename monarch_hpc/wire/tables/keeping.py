"""The table of what hosts keep of records in files, see `telemetry.kept`."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.schema import Table

__all__ = ["KEEPING", "HostKeeping"]


@dataclass(frozen=True, slots=True)
class HostKeeping:
    """What one host keeps."""

    host: Annotated[str, "name of the host"]
    keeps: Annotated[bool, "whether its helper keeps records, see `telemetry.keep`"]
    records: Annotated[int, "records of calls, metrics, spans and transfers taken so far, by this helper"]
    left_out: Annotated[int, "calls that were left out, because there were more than `telemetry.keep_per_s`"]
    lost: Annotated[int, "records that were overwritten before they were taken, or that found no room on a disk"]
    parts: Annotated[int, "files written"]
    bytes: Annotated[int, "their size"]
    waiting_bytes: Annotated[int, "size of what is not in a file yet, uncompressed"]
    problem: Annotated[str, "why the last file could not be written; empty if it could"]
    exported: Annotated[int, "metrics and spans that the collector of `telemetry.otlp_url` has taken"]
    unexported: Annotated[int, "those that it has not taken, because it was out of reach, or there were too many"]
    export_problem: Annotated[str, "why it has not taken the last ones; empty if it has, or there is no collector"]


KEEPING = Table("keeping", HostKeeping, "What hosts keep of records in files, and export.")
