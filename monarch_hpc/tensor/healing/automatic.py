"""Heals a mesh where the program would get the error, and issues again what was lost: the program sees a pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.tensor.healing.heal import heal_engine
from monarch_hpc.tensor.stream.issue_log import IssueLog

if TYPE_CHECKING:
    from monarch_hpc.tensor.healing.recovery import Recovery
    from monarch_hpc.tensor.stream.engine import View

__all__ = ["heal_by_itself"]

_POLICY = ("respawn", "spares")
"""Not smaller meshes: what was issued has parts for each rank."""

_MAX_AT_ONE_VERSION = 3
"""Heals at one version, after which the program gets the error: what was issued since may be what kills ranks."""


def heal_by_itself(view: View, recovery: Recovery) -> None:
    """Have a mesh heal by itself from here on, which begins with a version.

    Args:
        view: all ranks.
        recovery: the versions of the mesh.
    """
    engine = view.engine
    if engine.log is not None:
        return
    engine.log = recovery.log = IssueLog(engine.config.reissue_bytes, engine.templates.spec_of)
    engine.heals = _Healer(view, recovery).heal
    recovery.commit(view, num_steps=0)


class _Healer:
    def __init__(self, view: View, recovery: Recovery) -> None:
        self._view = view
        self._recovery = recovery
        self._last_version = -1
        self._num_at_last = 0

    def heal(self) -> None:
        """Heal the mesh, and issue again what followed its version; the caller holds the engine's lock.

        Raises:
            DeviceMeshError: that is not possible, or not exact; the mesh has gone back, and `heal_mesh` may heal it.
        """
        engine, recovery = self._view.engine, self._recovery
        broken = engine.broken
        assert broken is not None
        if not recovery.goes_on:
            raise broken
        self._num_at_last = self._num_at_last + 1 if broken.version == self._last_version else 1
        self._last_version = broken.version
        try:
            if self._num_at_last > _MAX_AT_ONE_VERSION:
                raise _refused(broken, f"it was healed {_MAX_AT_ONE_VERSION} times at this version")
            heal_engine(self._view, recovery, _POLICY, None, loads=False)
        except DeviceMeshError:
            recovery.go_back()
            raise


def _refused(broken: DeviceMeshError, why: str) -> DeviceMeshError:
    cause = f"{broken.cause}; {why}"
    return DeviceMeshError(
        broken.mesh, broken.kind, broken.rank, cause, broken.host, broken.last_lines, broken.version, broken.stacks
    )
