"""Files of kept records in the directory of an allocation.

    telemetry/parts/<host>-<number>    what one host had recorded when it wrote it, compressed chunks
    telemetry/<table>/<group>-<number>.parquet    rows of one table of up to 16 hosts, made of their parts

Each file is written whole, with mode 0600, and never changed. The host of a part is its rank.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.files import private_dir, write_private

__all__ = ["GROUP_HOSTS", "KEPT", "PartFile", "list_parts", "list_tables", "read_part", "table_path", "write_part"]

KEPT = "telemetry"
_PARTS = "parts"

GROUP_HOSTS = 16
"""Hosts whose parts become one file of each table: a thousand hosts have 63 writers."""

_PART = re.compile(r"(\d{1,6})-(\d{1,9})")
_LEVEL = 1
"""Of zlib: higher ones take thrice the time for a tenth of the size."""


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part of one host.

    Args:
        host: rank of the host.
        number: 1 for its first.
    """

    path: Path
    host: int
    number: int
    num_bytes: int


def list_parts(directory: Path) -> list[PartFile]:
    """Return the parts in an allocation's directory, by host and number."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / KEPT / _PARTS) as entries:
        for entry in entries:
            match = _PART.fullmatch(entry.name)
            with contextlib.suppress(FileNotFoundError):  # it has become a part of a table
                if match is not None:
                    size = entry.stat(follow_symlinks=False).st_size
                    found.append(PartFile(Path(entry.path), int(match[1]), int(match[2]), size))
    return sorted(found, key=lambda one: (one.host, one.number))


def write_part(directory: Path, host: int, number: int, chunks: bytes) -> int:
    """Write a part; return its size. A part with the same number is replaced: it is the same one.

    Raises:
        OSError, ConfigError: it cannot be written, and nothing is left of it.
    """
    folder = private_dir(private_dir(directory / KEPT) / _PARTS)
    data = zlib.compress(chunks, _LEVEL)
    write_private(folder / f"{host}-{number}", data)
    return len(data)


def read_part(path: Path) -> bytes:
    """Return the chunks of a part, as far as they can be read; raises `FileNotFoundError` if it is gone."""
    reader = zlib.decompressobj()
    try:
        return reader.decompress(path.read_bytes())
    except zlib.error:
        return b""


def list_tables(directory: Path) -> dict[str, list[Path]]:
    """Return the files of tables in an allocation's directory, by table, the oldest first."""
    found: dict[str, list[Path]] = {}
    for path in (directory / KEPT).glob("*/*.parquet"):
        if _PART.fullmatch(path.stem):
            found.setdefault(path.parent.name, []).append(path)
    return {table: sorted(paths, key=_number) for table, paths in sorted(found.items())}


def table_path(directory: Path, table: str, group: int) -> Path:
    """The next file of a table of a group of hosts; its folder is there then.

    Raises:
        OSError, ConfigError: there can be no such folder.
    """
    folder = private_dir(private_dir(directory / KEPT) / table)
    own = (path for path in folder.glob(f"{group}-*.parquet") if _PART.fullmatch(path.stem))
    return folder / f"{group}-{max(map(_number, own), default=0) + 1}.parquet"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
