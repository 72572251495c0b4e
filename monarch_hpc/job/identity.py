"""Identities of workers in their addresses, for launchers of moved programs; they are informative only."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from monarch_hpc.core.uid import ProcId, Uid

__all__ = [
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "deserialize_service_proc_ids",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
]

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"


def new_service_proc_id() -> ProcId:
    """A new identity for a worker."""
    return ProcId(Uid.instance("service"))


def serialize_service_proc_ids(proc_ids: Sequence[ProcId]) -> str:
    """Serialize *proc_ids* to a string for an environment variable."""
    return json.dumps([str(proc_id) for proc_id in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """Return the identities that `serialize_service_proc_ids` serialized.

    Raises:
        ValueError: *serialized* is not a JSON list of identities.
    """
    found = json.loads(serialized)
    if not isinstance(found, list):
        raise ValueError(f"{serialized!r} is not a list of identities")
    return [ProcId.from_string(str(each)) for each in found]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """*address* prefixed with an identity; unchanged for None."""
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """`service_proc_addr` of each pair of address and identity.

    Raises:
        ValueError: *addresses* and *proc_ids* differ in length.
    """
    if proc_ids is None:
        return list(addresses)
    if len(addresses) != len(proc_ids):
        raise ValueError(f"{len(addresses)} addresses for {len(proc_ids)} identities")
    return [service_proc_addr(address, proc_id) for address, proc_id in zip(addresses, proc_ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """The identity of this process according to its environment; None if the variables are not set.

    Args:
        rank_env: name of the variable that holds the index of this process in the list ``MONARCH_SERVICE_PROC_IDS``.

    Raises:
        ValueError: the list is invalid, or the index is not in it.
    """
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    proc_ids = deserialize_service_proc_ids(serialized)
    if not rank.isdecimal() or int(rank) >= len(proc_ids):
        raise ValueError(f"${rank_env} is {rank!r}, and ${SERVICE_PROC_IDS_ENV} has {len(proc_ids)} identities")
    return proc_ids[int(rank)]
