"""Decides from owner, mode and group whether other users can change a file or a folder."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path

__all__ = ["others_may_write", "shared_folder", "trusted_owner", "unsafe_folder"]

_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_ALL_UIDS = ["0", "0", "4294967295"]


def trusted_owner(uid: int) -> bool:
    """Whether files that belong to *uid* were made by this user or by root."""
    return uid in (0, os.geteuid()) or uid == _unmapped_uid()


def others_may_write(found: os.stat_result) -> bool:
    """Whether the mode lets users other than the owner write.

    The group counts as others unless it is the user's private group: many sites have one primary group for all users,
    while others give each user a group, and with it a umask of 002.
    """
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def unsafe_folder(found: os.stat_result) -> str:
    """Explain why other users can replace files in this folder; empty if they cannot.

    In a folder with the sticky bit, such as ``/tmp``, only the owner of a file can rename or remove it.
    """
    if trusted_owner(found.st_uid) and found.st_mode & stat.S_ISVTX:
        return ""
    return shared_folder(found)


def shared_folder(found: os.stat_result) -> str:
    """Explain why other users can put files into this folder, or replace some; empty if they cannot."""
    if not trusted_owner(found.st_uid):
        return f"belongs to user id {found.st_uid}, not to you ({os.geteuid()})"
    if others_may_write(found):
        return f"may be written by other users (mode {stat.S_IMODE(found.st_mode):04o}, group id {found.st_gid})"
    return ""


def _is_own_group(gid: int) -> bool:
    # The rule of pam_umask and login.defs; at most sites a list of all users, which would be exact, is not available.
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@functools.cache
def _unmapped_uid() -> int:
    """The user id as which the machine's root appears in a container of this user; -1 outside of containers.

    All other users appear under the same id, so that only modes distinguish root's folders from theirs.
    """
    try:
        if _UID_MAP.read_text().split() != _ALL_UIDS:
            return int(_OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        pass
    return -1
