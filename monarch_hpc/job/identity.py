"""Identities of workers in their addresses, for launchers of moved programs; here they are for people only."""

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
    """*proc_ids* as a text for a variable."""
    return json.dumps([str(proc_id) for proc_id in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """What `serialize_service_proc_ids` made a text of.

    Raises:
        ValueError: the text is something else.
    """
    found = json.loads(serialized)
    if not isinstance(found, list):
        raise ValueError(f"{serialized!r} is no list of identities")
    return [ProcId.from_string(str(each)) for each in found]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """*address* with an identity before it; None leaves it as it is."""
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """`service_proc_addr` for each.

    Raises:
        ValueError: there are more of one than of the other.
    """
    if proc_ids is None:
        return list(addresses)
    if len(addresses) != len(proc_ids):
        raise ValueError(f"{len(addresses)} addresses for {len(proc_ids)} identities")
    return [service_proc_addr(address, proc_id) for address, proc_id in zip(addresses, proc_ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """The identity that the environment has for this process; None where it says nothing.

    Args:
        rank_env: variable with its place in the list of ``MONARCH_SERVICE_PROC_IDS``.

    Raises:
        ValueError: the list, or the place in it, is none.
    """
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    proc_ids = deserialize_service_proc_ids(serialized)
    if not rank.isdecimal() or int(rank) >= len(proc_ids):
        raise ValueError(f"${rank_env} is {rank!r}, and ${SERVICE_PROC_IDS_ENV} has {len(proc_ids)} identities")
    return proc_ids[int(rank)]
