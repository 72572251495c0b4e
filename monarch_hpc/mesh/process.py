"""What zygotes import, and procs run: the main function of a proc, with all of us that users' modules name.

A module that defines actors imports `HostMesh`, `this_host` and the like. Loaded here, once for each host and before
procs are forked, that costs a proc nothing; in each of eight procs on two cores it took a quarter of a second.
"""

from __future__ import annotations

from monarch_hpc.actor.ports import port  # noqa: F401 for those who come after
from monarch_hpc.actor.runtime.main import main
from monarch_hpc.mesh import host  # noqa: F401 the same
from monarch_hpc.mesh.calls import accumulator  # noqa: F401 the same
from monarch_hpc.mesh.scripts import script, spmd  # noqa: F401 the same

__all__ = ["main"]
