"""The hosts of an allocation that a program has lost, what waits for their return, and the spares in their place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from monarch_hpc.supervision.spares import hosts_in_use, substitutes
from monarch_hpc.wire.control.allocation import HostEnded, HostEntry

__all__ = ["HostAbsences"]


class HostAbsences:
    """Keeps lost hosts by rank. It does no I/O; all methods that change it must be called on the driver.

    Args:
        num_hosts: number of hosts of the allocation.
        num_spares: config key `heal.spare_hosts`.
    """

    def __init__(self, num_hosts: int, num_spares: int) -> None:
        self._num_hosts = num_hosts
        self._num_spares = num_spares
        self._lost: dict[int, bool] = {}  # rank -> whether its return is a matter of seconds
        self._waiting: dict[int, list[tuple[Callable[[], None], Callable[[str], None]]]] = {}

    def lose(self, ended: HostEnded, known: HostEntry | None) -> bool:
        """Handle the loss of a host; return whether it is that of the agent that is *known*, not of an earlier one."""
        if known is None or known.incarnation != ended.incarnation:
            return False
        self._lost[ended.host] = ended.returning
        return True

    def give_up(self, rank: int, cause: str) -> None:
        """Handle the news that a host does not return soon, or not at all."""
        if rank in self._lost:
            self._lost[rank] = False
            for _, failed in self._waiting.pop(rank, ()):
                failed(cause)

    def end(self, rank: int) -> bool:
        """Handle the return of a host, or the news of another one; return whether its loss was known."""
        self._num_hosts = max(self._num_hosts, rank + 1)
        known = self._lost.pop(rank, None) is not None
        for then, _ in self._waiting.pop(rank, ()):
            then()
        return known

    def end_all(self, ranks: Iterable[int]) -> None:
        """Handle the news of a head that it has these hosts."""
        for rank in ranks:
            self.end(rank)

    def is_lost(self, rank: int) -> bool:
        """Whether the loss of a host is known, and not its return."""
        return rank in self._lost

    def when_back(self, rank: int, then: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call *then* at once, or once a host that is about to return has; *failed* if it does not.

        For a host that is lost for good *then* is called at once, too: the head refuses the request, and says why.
        """
        if self._lost.get(rank):
            self._waiting.setdefault(rank, []).append((then, failed))
        else:
            then()

    # ---- spares ----

    def in_use(self, hosts: Collection[int]) -> list[int]:
        """Of an allocation's *hosts* those that are not spares; where there are spares, none that is lost."""
        if not self._num_spares:
            return sorted(hosts)
        return hosts_in_use(self._present(hosts), self._num_hosts, self._num_spares)

    def substitutes(self, mesh: Sequence[int], wanted: Iterable[int], hosts: Collection[int]) -> dict[int, int]:
        """Hosts that can take the place of the lost ones among *wanted*, by rank of these.

        Args:
            mesh: hosts that have, or had, procs of the same mesh.
            hosts: those of the allocation.
        """
        lost = self._lost.keys() & set(wanted)
        usual = hosts_in_use(sorted(hosts), self._num_hosts, self._num_spares)
        return substitutes(mesh, lost, self._present(hosts), usual)

    def _present(self, hosts: Collection[int]) -> list[int]:
        return sorted(rank for rank in hosts if rank not in self._lost)
