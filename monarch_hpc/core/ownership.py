"""Judges who else can change a file or a folder, from its owner, mode and group."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path

__all__ = ["others_may_write", "trusted_owner", "unsafe_folder"]

_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_ALL_UIDS = ["0", "0", "4294967295"]


def trusted_owner(uid: int) -> bool:
    """Whether what belongs to *uid* was made by this user or by root."""
    return uid in (0, os.geteuid()) or uid == _unmapped_uid()


def others_may_write(found: os.stat_result) -> bool:
    """Whether the mode lets users write who are not the owner.

    The group counts as others unless it is the user's own: many sites have one primary group for all users, while
    others give each user a group, and a file mode mask of 002 with it.
    """
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def unsafe_folder(found: os.stat_result) -> str:
    """Say why other users can put files in the place of others' in this folder; empty where they cannot.

    In a folder with the sticky bit, such as ``/tmp``, only the owner of a file can rename or remove it.
    """
    if not trusted_owner(found.st_uid):
        return f"belongs to user id {found.st_uid}, not to you ({os.geteuid()})"
    if others_may_write(found) and not found.st_mode & stat.S_ISVTX:
        return f"may be written by other users (mode {stat.S_IMODE(found.st_mode):04o}, group id {found.st_gid})"
    return ""


def _is_own_group(gid: int) -> bool:
    # The rule of pam_umask and login.defs: a list of all users, which could tell more, is not to be had at most sites.
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@functools.cache
def _unmapped_uid() -> int:
    """As whom the kernel shows the machine's root in a container of this user's; -1 where root is itself.

    All other users are shown so, too. Modes are all that is left there to tell root's folders from theirs.
    """
    try:
        if _UID_MAP.read_text().split() != _ALL_UIDS:
            return int(_OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        pass
    return -1
