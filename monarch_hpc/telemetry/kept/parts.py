"""Files of kept records in the directory of an allocation.

    telemetry/parts/<host>-<number>.2    what one host had recorded when it wrote it, compressed chunks
    telemetry/<table>/<group>-<number>.parquet    rows of one table of up to 16 hosts, made of their parts

Each file is written whole, with mode 0600, and never changed. The host of a part is its rank. Its name ends with the
version of its format; the first version, whose records are not in columns, has none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import zlib
from collections.abc import Collection
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.files import private_dir, write_private
from monarch_hpc.telemetry.kept.chunks import parse
from monarch_hpc.telemetry.kept.packing import pack

__all__ = [
    "GROUP_HOSTS",
    "KEPT",
    "PartFile",
    "list_parts",
    "list_tables",
    "names_of_hosts",
    "read_part",
    "table_path",
    "write_part",
]

KEPT = "telemetry"
_PARTS = "parts"

GROUP_HOSTS = 16
"""Hosts whose parts become one file of each table: a thousand hosts have 63 writers."""

_NAME = r"(\d{1,6})-(\d{1,9})"
_TABLE = re.compile(_NAME)
_PART = re.compile(_NAME + r"(?:\.(\d{1,3}))?")
_VERSION = 2
_KEEP_PARTS = 1024
"""Parts that are kept as objects: those of a host between two times at which tables are made of them, and more."""

_LEVEL = 1
"""Of zlib: the sixth takes twice the time for a twelfth of the size."""


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part of one host.

    Args:
        host: rank of the host.
        number: 1 for its first.
        changed_ns: when it was written, by the file system's clock.
        version: that of its format.
    """

    path: Path
    host: int
    number: int
    num_bytes: int
    changed_ns: int
    version: int

    @property
    def is_readable(self) -> bool:
        """Whether its format is not of a later version."""
        return self.version <= _VERSION

    @property
    def is_packed(self) -> bool:
        """Whether its records are in columns, see `packing`."""
        return self.version > 1


def list_parts(directory: Path, host: int | None = None) -> list[PartFile]:
    """Return the parts in an allocation's directory, by host and number.

    Args:
        host: rank of a host, whose parts are looked for only: a thousand hosts have ten thousand.
    """
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / KEPT / _PARTS) as entries:
        for entry in entries:
            match = _PART.fullmatch(entry.name)
            if match is None or (host is not None and int(match[1]) != host):
                continue
            with contextlib.suppress(FileNotFoundError):  # it has become a part of a table
                stat = entry.stat(follow_symlinks=False)
                place, version = (int(match[1]), int(match[2])), int(match[3] or 1)
                found.append(_part(entry.path, *place, stat.st_size, stat.st_mtime_ns, version))
    return sorted(found, key=lambda one: (one.host, one.number))


@functools.lru_cache(_KEEP_PARTS)
def _part(path: str, host: int, number: int, num_bytes: int, changed_ns: int, version: int) -> PartFile:
    """The same object for the same file: they are compared for each question."""
    return PartFile(Path(path), host, number, num_bytes, changed_ns, version)


def write_part(directory: Path, host: int, number: int, chunks: bytes) -> int:
    """Write a part; return its size. A part with the same number is replaced: it is the same one.

    Raises:
        OSError, ConfigError: it cannot be written, and nothing is left of it.
    """
    folder = private_dir(private_dir(directory / KEPT) / _PARTS)
    data = zlib.compress(pack(chunks), _LEVEL)
    write_private(folder / f"{host}-{number}.{_VERSION}", data)
    return len(data)


def read_part(path: Path) -> bytes:
    """Return the stored chunks of a part, as far as they can be read; raises `FileNotFoundError` if it is gone."""
    reader = zlib.decompressobj()
    try:
        return reader.decompress(path.read_bytes())
    except zlib.error:
        return b""


def names_of_hosts(directory: Path, without: Collection[int]) -> set[str]:
    """Return the names of the hosts that have parts in an allocation's directory; empty for one that is not known.

    Args:
        without: ranks of hosts that are not looked for.
    """
    found: dict[int, str] = {}
    for part in list_parts(directory):
        if part.host not in without and not found.get(part.host):
            found[part.host] = ""
            with contextlib.suppress(FileNotFoundError):
                names = (heading.host for heading, _, _ in parse(read_part(part.path)) if heading.host)
                found[part.host] = next(names, "")
    return set(found.values())


def list_tables(directory: Path) -> dict[str, list[Path]]:
    """Return the files of tables in an allocation's directory, by table, the oldest first."""
    found: dict[str, list[Path]] = {}
    for path in (directory / KEPT).glob("*/*.parquet"):
        if _TABLE.fullmatch(path.stem):
            found.setdefault(path.parent.name, []).append(path)
    return {table: sorted(paths, key=_number) for table, paths in sorted(found.items())}


def table_path(directory: Path, table: str, group: int) -> Path:
    """The next file of a table of a group of hosts; its folder is there then.

    Raises:
        OSError, ConfigError: there can be no such folder.
    """
    folder = private_dir(private_dir(directory / KEPT) / table)
    own = (path for path in folder.glob(f"{group}-*.parquet") if _TABLE.fullmatch(path.stem))
    return folder / f"{group}-{max(map(_number, own), default=0) + 1}.parquet"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
