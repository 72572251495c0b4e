"""A lab's folder on the machine: its files, its lock, and its removal.

Everything that a lab leaves on disk lies below it, including the record of the processes to end. So any process that
has the folder's path can take down a lab whose starter was killed half way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeGuard

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import LabError
from monarch_hpc.core.storage.files import read_json, write_json
from monarch_hpc.testing.slurmlab import slurmconf, users
from monarch_hpc.testing.slurmlab.processes import ProcessIdentity
from monarch_hpc.testing.slurmlab.requirements import tool
from monarch_hpc.testing.slurmlab.slurmconf import Cluster
from monarch_hpc.testing.slurmlab.users import Account
from monarch_hpc.testing.waiting import wait_until

__all__ = ["LabFolder", "Settings", "find_labs", "find_root"]

_SCHEMA = 1
# The first file made and the last one removed: a folder without it is not a lab's.
_MARKER = "slurmlab"
_ROOT_PREFIX = "monarch-hpc-labs-"
_LOCK_TIMEOUT_S = 60.0
_COPY_TIMEOUT_S = 30.0


def find_root(environ: Mapping[str, str], user_id: int) -> Path:
    """The folder of the labs without ``--base``."""
    return Path(environ.get("XDG_RUNTIME_DIR") or "/tmp", f"{_ROOT_PREFIX}{user_id}")


def find_labs(root: Path) -> list[Path]:
    """The folders of the labs below *root*, in any state."""
    if not root.is_dir():
        return []
    # A start that was killed right away leaves an empty folder.
    return sorted(entry for entry in root.iterdir() if (entry / _MARKER).exists() or not any(entry.iterdir()))


@dataclass(frozen=True, slots=True)
class Settings:
    """A lab's settings, recorded for later commands.

    Args:
        cluster: the simulated cluster.
        uids: the user id of each ordinary user.
        bin_folder: first folder on its users' PATH.
        needed: folders of the machine that its hosts show read-only.
    """

    cluster: Cluster
    uids: dict[str, int]
    bin_folder: Path
    needed: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class LabFolder:
    """The folder of one lab."""

    path: Path

    def __post_init__(self) -> None:
        if any(character in "\n,;#\"'\\ \t[]%" for character in str(self.path)):
            raise LabError(str(self.path), "Slurm cannot name files below this path; choose one of letters and digits")

    @property
    def homes(self) -> Path:
        """Parent of the users' home folders."""
        return self.path / "home"

    @property
    def scratch(self) -> Path:
        """Parent of the users' folders that all hosts can write, whatever becomes of the homes."""
        return self.path / "scratch"

    @property
    def log(self) -> Path:
        """Folder of the daemons' logs."""
        return self.path / "log"

    def exists(self) -> bool:
        """Whether there is a lab, or remains of one."""
        return (self.path / _MARKER).exists()

    @contextlib.contextmanager
    def open_locked(self, create: bool = False) -> Iterator[None]:
        """Lock the lab: no other command starts, boots or removes anything meanwhile.

        Args:
            create: make the folder if it is missing.

        Raises:
            LabError: there is no lab here, the folder belongs to another user, or another command holds it too long.
        """
        if create:
            self._create()
        marker = self.path / _MARKER
        try:
            descriptor = os.open(marker, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LabError(self.path.name, f"there is no lab in {self.path}; make one with 'up'") from None
        try:
            try:
                wait_until(f"the lock on {self.path}", lambda: _try_lock(descriptor), _LOCK_TIMEOUT_S)
            except TimeoutError as error:
                raise LabError(self.path.name, "another command works on it; try again when it is done") from error
            # The previous holder of the lock may have removed the lab.
            if not marker.exists() or not os.path.samestat(os.fstat(descriptor), marker.stat()):
                raise LabError(self.path.name, "it was taken down meanwhile")
            yield
        finally:
            os.close(descriptor)

    def _create(self) -> None:
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o755)
        # A user who can write the parent folder could exchange this lab for another.
        checked = [self.path, self.path.parent] if _is_root(self.path.parent) else [self.path]
        for folder in checked:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise LabError(
                    self.path.name, f"{folder} belongs to others, or others may write it; choose another base"
                )
        if any(self.path.iterdir()) and not self.exists():
            raise LabError(self.path.name, f"{self.path} holds other files; choose an empty or missing folder as base")
        self.path.chmod(0o755)
        os.close(os.open(self.path / _MARKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def make_folders(self) -> None:
        """Make the folders that the hosts see."""
        for name in ("files", "munge", "dev", "home", "scratch", "log", "state", "secret", "holders"):
            folder = self.path / name
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700 if name in ("secret", "holders", "state") else 0o755)

    def write_files(self, cluster: Cluster, accounts: Sequence[Account]) -> None:
        """Write what the hosts read: their /etc with Slurm's and the users' files, munge's key, devices, homes."""
        self._copy_etc()
        files = {
            "etc/slurm/slurm.conf": slurmconf.render_slurm_conf(cluster, self.path),
            "etc/slurm/cgroup.conf": slurmconf.CGROUP_CONF,
            "etc/slurm/job_submit.lua": slurmconf.JOB_SUBMIT_LUA,
            "etc/slurm/gres.conf": slurmconf.render_gres_conf(cluster, self.path / "dev"),
            "etc/hosts": slurmconf.render_hosts(cluster),
            "etc/resolv.conf": slurmconf.RESOLV_CONF,
            "etc/passwd": users.render_passwd(Path("/etc/passwd").read_text(), accounts),
            "etc/group": users.render_group(Path("/etc/group").read_text(), accounts),
            "etc/hostname": "",
        } | {f"files/hostname.{host}": f"{host}\n" for host in cluster.machines}
        for name, text in files.items():
            # On the machine the file may be a link.
            (self.path / name).unlink(missing_ok=True)
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o644)
        key = self.path / "secret" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        for number in range(cluster.num_gpus):
            # Slurm requires character devices; a link to one needs no privilege to make devices.
            (self.path / "dev" / f"nvidia{number}").symlink_to("/dev/null")
        for account in accounts:
            for own in (account.home, self.scratch / account.name):
                own.mkdir(mode=0o700)
                os.chown(own, account.uid, account.uid)

    def _copy_etc(self) -> None:
        """Copy the machine's /etc; Slurm's folder is left empty.

        It is a copy rather than mounts over single files: a tool that adds a user or installs a package on the machine
        renames a new file over the old one, which removes the mount.
        """
        copied = self.path / "etc"
        argv = [tool("cp"), "--archive", "--no-target-directory", "/etc", str(copied)]
        wait_until(
            "/etc to be copied",
            # Fails if a file is removed meanwhile.
            lambda: subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False),
            _COPY_TIMEOUT_S,
            accept=lambda done: done.returncode == 0,
        )
        shutil.rmtree(copied / "slurm")
        (copied / "slurm").mkdir(mode=0o755)

    def write_settings(self, settings: Settings) -> None:
        """Record the lab's settings."""
        record = {
            "schema": _SCHEMA,
            "cluster": asdict(settings.cluster),
            "uids": settings.uids,
            "bin_folder": str(settings.bin_folder),
            "needed": [str(path) for path in settings.needed],
        }
        write_json(self.path / "lab.json", record)

    def read_settings(self) -> Settings:
        """The settings of this lab.

        Raises:
            LabError: there is no lab, or its start was interrupted.
        """
        try:
            record = read_json(self.path / "lab.json")
        except FileNotFoundError:
            state = "its start was interrupted: take it down" if self.exists() else "there is none: make it with 'up'"
            raise LabError(self.path.name, f"{state} (in {self.path})") from None
        match record:
            case {
                "schema": 1,
                "cluster": cluster,
                "uids": uids,
                "bin_folder": str(bin_folder),
                "needed": [*needed],
            } if _is_counts(cluster) and _is_counts(uids):
                return Settings(Cluster(**cluster), uids, Path(bin_folder), tuple(Path(str(path)) for path in needed))
        raise LabError(
            self.path.name, f"{self.path}/lab.json was written by another version; take the lab down with it"
        )

    def write_holder(self, host: str, holder: ProcessIdentity) -> None:
        """Record the process that holds a host."""
        write_json(self.path / "holders" / f"{host}.json", {"pid": holder.pid, "start": holder.start})

    def drop_holder(self, host: str) -> None:
        """Remove the record of a host's holder."""
        (self.path / "holders" / f"{host}.json").unlink(missing_ok=True)

    def read_holder(self, host: str) -> ProcessIdentity | None:
        """The recorded holder of a host, which may have ended; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            record = read_json(self.path / "holders" / f"{host}.json")
            if _is_counts(record):
                return ProcessIdentity(**record)
        return None

    def read_holders(self) -> dict[str, ProcessIdentity]:
        """The recorded holder of each host."""
        names = sorted(file.stem for file in (self.path / "holders").glob("*.json"))
        return {name: holder for name in names if (holder := self.read_holder(name))}

    def clear(self) -> None:
        """Empty the folder except for the marker; the caller holds the lock and has ended all processes."""
        for entry in [one for one in self.path.iterdir() if one.name != _MARKER]:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Remove the folder; the caller holds the lock and has ended all processes.

        The marker is removed last, so that an interrupted removal can be resumed.
        """
        self.clear()
        (self.path / _MARKER).unlink(missing_ok=True)
        self.path.rmdir()
        if _is_root(self.path.parent):
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()


def _is_root(folder: Path) -> bool:
    return folder.name.startswith(_ROOT_PREFIX)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_counts(value: object) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(isinstance(key, str) and isinstance(one, int) for key, one in value.items())
