"""Process groups of two ranks without actors."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.groups import Groups

__all__ = ["BOTH", "FileGroups"]

BOTH = (0, 1)

_untyped: Any = dist  # does not declare its stores


class FileGroups(Groups):
    """The groups of one of two ranks, which meet by a file.

    Args:
        rank: the rank.
        path: the file.
        limit_s: see the base class.
    """

    def __init__(self, rank: int, path: str, limit_s: float) -> None:
        super().__init__(rank, dict.fromkeys(BOTH, "127.0.0.1"), None, {}, limit_s)  # type: ignore[arg-type]  # no actors
        self._path = path

    def store(self, _rank: int, prefix: str) -> Any:
        """See base class."""
        return _untyped.PrefixStore(f"{self.epoch}/{prefix}", _untyped.FileStore(self._path, 2))
