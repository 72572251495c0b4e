"""The ordinary users of a lab, which exist on its hosts only: the machine's own files are not changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass

__all__ = [
    "RESTRICTED_GROUP",
    "ROOT",
    "USERS",
    "Account",
    "login_environment",
    "plan_accounts",
    "render_group",
    "render_passwd",
]

USERS = ("alice", "bob")
# The partition of this name accepts bob's jobs and refuses alice's.
RESTRICTED_GROUP = "vip"
_RESTRICTED_MEMBERS = ("bob",)
# Debian assigns 1000-59999 to users; few machines have ids near this block.
_FIRST_ID = 47001


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the lab's hosts; its group has the same id."""

    name: str
    uid: int
    home: Path


ROOT = Account("root", 0, Path("/root"))


def plan_accounts(homes: Path, taken_ids: Collection[int]) -> tuple[Account, ...]:
    """Accounts for `USERS`, with user ids that are free on this machine."""
    free = (uid for uid in range(_FIRST_ID, 60000) if uid not in taken_ids)
    return tuple(Account(name, uid, homes / name) for name, uid in zip(USERS, free, strict=False))


def login_environment(account: Account, path: str, terminal: str) -> dict[str, str]:
    """The environment of a fresh login; *path* is its PATH."""
    return {
        "HOME": str(account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": "/bin/bash",
        "PATH": path,
        "LANG": "C.UTF-8",
        "TERM": terminal,
    }


def render_passwd(real: str, accounts: Sequence[Account]) -> str:
    """The machine's passwd file, with the lab's users in place of any of the same name."""
    lines = [f"{one.name}:x:{one.uid}:{one.uid}:{one.name} of slurmlab:{one.home}:/bin/bash" for one in accounts]
    return _merge(real, lines)


def render_group(real: str, accounts: Sequence[Account]) -> str:
    """The machine's group file, with the lab's groups in place of any of the same name."""
    lines = [f"{one.name}:x:{one.uid}:" for one in accounts]
    lines.append(f"{RESTRICTED_GROUP}:x:{accounts[-1].uid + 1}:{','.join(_RESTRICTED_MEMBERS)}")
    return _merge(real, lines)


def _merge(real: str, lines: Sequence[str]) -> str:
    ours = {line.split(":", 1)[0] for line in lines}
    kept = [line for line in real.splitlines() if line and line.split(":", 1)[0] not in ours]
    return "\n".join([*kept, *lines]) + "\n"
