"""The communication that operations on sharded tensors imply, by the program's lines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

from monarch_hpc.tensor.reading import read_values
from monarch_hpc.tensor.sharded.calls import call_by_name
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.sites import Site, line_of

__all__ = ["Communication", "CommunicationRow"]


class CommunicationRow(NamedTuple):
    """Collectives that a line has implied.

    Attributes:
        line: file, line, function and source.
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
        num: number of collectives.
        num_bytes: bytes that the first rank has put into them.
    """

    line: str
    kind: str
    num: int
    num_bytes: int


class Communication:
    """The collectives of a block; see `Mesh.communication`.

    Attributes:
        rows: those of the block, after its end; the largest first.
    """

    def __init__(self, view: View) -> None:
        self.rows: list[CommunicationRow] = []
        self._view = view
        self._lines: list[tuple[int, list[Site]]] = []

    def __enter__(self) -> Self:
        engine = self._view.engine
        if engine.site_log is not None:
            raise RuntimeError("communication() of these procs is counted already: end that block first")
        call_by_name(self._view, "count_communication", [True], [], 0)
        engine.flush()
        engine.site_log = self._lines
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        view = self._view
        try:
            view.engine.flush()
        finally:
            view.engine.site_log = None
        if view.engine.broken is not None:
            return  # the error of the block says so
        number = call_by_name(view, "count_communication", [False], [], -2)
        future = read_values(view, dict.fromkeys(view.region.extent, 0), [number], lambda found: found[0])
        view.dead.append(number)
        self._fill(future.get())

    def _fill(self, counts: dict[tuple[int, str], tuple[int, int]]) -> None:
        found: dict[tuple[Any, str], tuple[int, int]] = {}
        sites = {base + place: site for base, frame in self._lines for place, site in enumerate(frame)}
        for (seq, kind), (num, num_bytes) in counts.items():
            if seq in sites:  # not what was issued before the block
                key = line_of(sites[seq]), kind
                before = found.get(key, (0, 0))
                found[key] = before[0] + num, before[1] + num_bytes
        rows = [CommunicationRow(line, kind, *numbers) for (line, kind), numbers in found.items()]
        self.rows = sorted(rows, key=lambda row: (-row.num_bytes, row))
        self._lines = []

    def __str__(self) -> str:
        lines = [f"{row.num_bytes:>12} bytes  {row.num:>5} x {row.kind:14} {row.line}" for row in self.rows]
        return "\n".join(lines) or "no communication"
