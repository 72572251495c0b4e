"""The head of an attempt: the claim to its first term, and a file for each term that names the head's host.

head.claim        one agent has become the head of term 1; heads of later terms are elected
head.<term>.json  rank and addresses of the head; the highest term counts
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import NEW_FILE

__all__ = ["HeadPlace", "claim", "newer_head", "read_head", "write_head"]

_CLAIM = "head.claim"
_HEAD = re.compile(r"head\.(\d+)\.json")


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """The host of a head.

    Args:
        term: number of its term, from 1.
        rank: rank of its host.
        addresses: addresses of its agent.
    """

    term: int
    rank: int
    addresses: list[str]


def claim(folder: Path, text: str) -> None:
    """Become the head of an attempt's first term, of which there is only one.

    Raises:
        AllocationError: it already has a head.
    """
    path = folder / _CLAIM
    try:
        descriptor = os.open(path, os.O_WRONLY | NEW_FILE, 0o600)
    except FileExistsError as error:
        holder = path.read_text(errors="replace").strip()
        raise AllocationError(folder.name, f"has a head already: {holder}; this second agent ends") from error
    with open(descriptor, "w") as file:
        file.write(text)


def write_head(folder: Path, head: HeadPlace) -> None:
    """Publish the head of a term for the other agents, and for programs."""
    write_document(folder / f"head.{head.term}.json", {"rank": head.rank, "addresses": head.addresses})


def read_head(folder: Path) -> HeadPlace | None:
    """Return the head of the highest term; None while there is none.

    The directory is listed, which makes NFS ask its server; a missing file may stay cached for a minute.
    """
    try:
        terms = [int(match[1]) for name in os.listdir(folder) if (match := _HEAD.fullmatch(name))]
        if not terms:
            return None
        document = read_document(folder / f"head.{max(terms)}.json")
    except FileNotFoundError:
        return None
    return HeadPlace(max(terms), document.whole("rank"), document.texts("addresses"))


def newer_head(folder: Path, term: int) -> str:
    """Say that the head of a later *term* rules; empty if none does, or the folder cannot be read."""
    try:
        head = read_head(folder)
    except (ConfigError, OSError):
        return ""
    return "" if head is None or head.term <= term else f"the head of term {head.term} rules, on host {head.rank}"
