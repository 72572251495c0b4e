"""Loads the configuration of this process: merges its layers, of which later ones win, and keeps all origins."""

from __future__ import annotations

import functools
import os
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monarch_hpc.config.document import Setting, parse_document, parse_value, unknown_key
from monarch_hpc.config.schema import OWNER_ONLY, SITE_ONLY, Config, build, convert, known_keys
from monarch_hpc.config.site import Profile, choose_profile, find_cluster_name, parse_profile
from monarch_hpc.config.tls import TCP_REFUSED, opens
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.assets import asset
from monarch_hpc.core.storage.ownership import others_may_write, unsafe_folder

__all__ = ["Loaded", "load", "load_config"]

_PREFIX = "MONARCH_HPC_"
_PROJECT_FILE = "monarch-hpc.yaml"
# Files written by hand have a hundred lines at most; a larger one is a mistake, such as a link to a log.
_MAX_FILE_BYTES = 64 << 10
_SLURM_KEYS = ("account", "partition", "qos", "reservation", "constraint")
_log = Logger(__name__)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", re.ASCII)


@dataclass(frozen=True)
class Loaded:
    """A configuration with the origins of its values."""

    config: Config
    settings: Mapping[str, Setting] = field(repr=False)

    def origin(self, key: str) -> str:
        """Return the origin of the value of *key*: ``file:line``, ``$VARIABLE`` or ``command line``.

        Each flag of a mapping of flags has its own key: ``slurm.job_flags.no-kill``.
        """
        if key not in self.settings:
            raise unknown_key(key, "here")
        return self.settings[key].origin


def load(flags: Mapping[str, object] | None = None) -> Loaded:
    """Load the configuration of this process.

    Args:
        flags: dotted key -> value as given on the command line; None for a flag that was not given.

    Raises:
        ConfigError: a file, variable or flag is wrong; `source` names it.
    """
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        # The working directory was removed, so there is no project file.
        cwd = Path("/")
    return load_config(os.environ, cwd, os.uname().nodename, find_cluster_name(os.environ), flags or {})


def load_config(
    environ: Mapping[str, str], cwd: Path, hostname: str, cluster_name: str | None, flags: Mapping[str, object]
) -> Loaded:
    """Load the configuration for a process with this environment.

    Args:
        environ: its environment.
        cwd: its working directory; the project's file is searched from there upwards.
        hostname: name of its machine.
        cluster_name: Slurm's ClusterName; None if there is no Slurm.
        flags: as for `load`.
    """
    home = Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    chosen_by_people = [
        *_read_own(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "monarch-hpc" / "config.yaml"),
        *_read_project(cwd, home),
        *_from_slurm_variables(environ),
        *_from_variables(environ),
        *_from_flags(flags),
    ]
    layers = [*_read_shipped("default.yaml"), *_site_settings(chosen_by_people, environ, hostname, cluster_name)]
    merged = {setting.key: setting for setting in [*layers, *chosen_by_people]}
    values: dict[str, object] = {}
    for key in known_keys():
        flag_settings = {k.removeprefix(key + "."): s for k, s in merged.items() if k.startswith(key + ".")}
        if key in merged:
            setting = merged[key]
            values[key] = _expand(setting, environ, home) if isinstance(setting.value, Path) else setting.value
        else:
            values[key] = {flag: setting.value for flag, setting in flag_settings.items()}
    # Empty stands for this process's interpreter, whose path no file can know.
    values["agent.python"] = values["agent.python"] or sys.executable
    loaded = Loaded(build(values), merged)
    _check(loaded)
    return loaded


def _read_shipped(name: str) -> list[Setting]:
    return parse_document(asset("configs", name).read_text(encoding="utf-8"), f"configs/{name}")


def _read_own(path: Path) -> list[Setting]:
    """Read a user's or project's file; return no settings if there is none."""
    try:
        # O_NONBLOCK: a FIFO by this name must not hang every command.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1) if stat.S_ISREG(found.st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError("", "", str(path), f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError("", "", str(path), "is not a regular file")
    if found.st_uid not in (0, os.geteuid()) or others_may_write(found):
        whose = f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}, group id {found.st_gid}"
        cure = f"look at what is in it, then make it yours and run 'chmod go-w {path}', or move it away"
        problem = f"was or may have been written by another user ({whose}); {cure}"
        raise ConfigError("", "", str(path), problem)
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError("", "", str(path), f"is larger than {_MAX_FILE_BYTES} bytes")
    try:
        settings = parse_document(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError("", "", str(path), "is not UTF-8 text") from error
    for setting in settings:
        if setting.key in SITE_ONLY:
            raise ConfigError(setting.key, "...", setting.origin, "only a profile in configs/sites has this key")
    return settings


def _read_project(cwd: Path, home: Path) -> list[Setting]:
    for folder in _up_to(home, cwd):
        if problem := _unsafe(folder):
            # Users who can write here can also move the folders below, and so choose what is above them.
            for above in _up_to(home, folder):
                if os.path.lexists(above / _PROJECT_FILE):
                    _warn_ignored(above / _PROJECT_FILE, folder, problem)
            return []
        settings = _read_own(folder / _PROJECT_FILE)
        for setting in settings:
            for key in OWNER_ONLY:
                if setting.key == key or setting.key.startswith(key + "."):
                    problem = (
                        "a project's file may not decide what runs as you, where files go or whom you trust; "
                        f"set it in your own file or with ${_variable(key)}"
                    )
                    raise ConfigError(setting.key, repr(setting.value), setting.origin, problem)
        if settings:
            return settings
    return []


def _up_to(home: Path, folder: Path) -> Iterator[Path]:
    """The folder and its parents, up to *home* if that is one of them."""
    for above in [folder, *folder.parents]:
        yield above
        if above == home:
            return


def _unsafe(folder: Path) -> str:
    try:
        found = os.stat(folder)
    except OSError as error:
        return f"cannot be examined: {error.strerror}"
    # The sticky bit does not help here: others can add a file to a folder such as /tmp.
    return "may be written by other users" if others_may_write(found) else unsafe_folder(found)


@functools.cache
def _warn_ignored(path: Path, folder: Path, problem: str) -> None:
    advice = "copy the settings that you want into your own file, or work in a folder that only you can write"
    _log.warning("%s is not read, because %s %s; %s", path, folder, problem, advice)


def _from_slurm_variables(environ: Mapping[str, str]) -> Iterator[Setting]:
    for key in _SLURM_KEYS:
        # sbatch reads the first of these; srun and users' shell profiles use the second.
        for variable in (f"SBATCH_{key.upper()}", f"SLURM_{key.upper()}"):
            if environ.get(variable):
                origin = f"${variable}"
                yield Setting(f"slurm.{key}", parse_value(f"slurm.{key}", environ[variable], origin), origin)
                break


def _from_variables(environ: Mapping[str, str]) -> Iterator[Setting]:
    keys = known_keys()
    for variable, text in environ.items():
        name = variable.removeprefix(_PREFIX)
        # Variables without a section are internal, such as the name of the run.
        if name == variable or ("__" not in name and name != "SITE"):
            continue
        key = name.lower().replace("__", ".")
        origin = f"${variable}"
        if key not in keys:
            raise unknown_key(key, origin)
        yield from _split(key, parse_value(key, text, origin), origin)


def _from_flags(flags: Mapping[str, object]) -> Iterator[Setting]:
    keys = known_keys()
    for key, value in flags.items():
        if value is None:
            continue
        if key not in keys:
            raise unknown_key(key, "command line")
        yield from _split(key, convert(key, value, keys[key], "command line"), "command line")


def _split(key: str, value: object, origin: str) -> Iterator[Setting]:
    if isinstance(value, Mapping):
        yield from (Setting(f"{key}.{flag}", flag_value, origin) for flag, flag_value in value.items())
    else:
        yield Setting(key, value, origin)


def _site_settings(
    settings: Sequence[Setting], environ: Mapping[str, str], hostname: str, cluster_name: str | None
) -> Sequence[Setting]:
    profiles = [_read_profile(path.name) for path in sorted(asset("configs", "sites").glob("*.yaml"))]
    explicit = [setting for setting in settings if setting.key == "site"]
    if not explicit:
        profile = choose_profile(profiles, environ, hostname, cluster_name)
        return profile.settings if profile else []
    wanted = explicit[-1]
    if wanted.value == "generic":
        return []
    for profile in profiles:
        if profile.name == wanted.value:
            return profile.settings
    known = ", ".join(["generic", *(profile.name for profile in profiles)])
    raise ConfigError("site", str(wanted.value), wanted.origin, f"no such profile; known: {known}")


def _read_profile(name: str) -> Profile:
    return parse_profile(_read_shipped(f"sites/{name}"), f"configs/sites/{name}")


def _expand(setting: Setting, environ: Mapping[str, str], home: Path) -> Path:
    """Expand variables and ~ in a path."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = environ.get(name) or match[3]
        if value is None:
            raise ConfigError(setting.key, str(setting.value), setting.origin, f"${name} is not set")
        return value

    text = _VARIABLE.sub(value_of, str(setting.value))
    path = home / text[2:] if text.startswith("~/") else Path(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        problem = f"gives {text!r}; must be an absolute path without '..', and may begin with ~/ or a $VARIABLE"
        raise ConfigError(setting.key, str(setting.value), setting.origin, problem)
    return path


def _check(loaded: Loaded) -> None:
    """Check ranges of values, and constraints between them."""
    slurm, live = loaded.config.slurm, loaded.config.liveness
    fabric, ucx = loaded.config.fabric, loaded.config.ucx
    keep_dead = loaded.config.telemetry.keep_dead
    order = list(fabric.order)
    relay_is_last = not {"tcp", "relay"} <= {*order} or order.index("tcp") < order.index("relay")
    rules = (
        (slurm.time_min > 0, "slurm.time_min", slurm.time_min, "must be more than 0"),
        (slurm.poll_min_s > 0, "slurm.poll_min_s", slurm.poll_min_s, "must be more than 0"),
        (slurm.poll_min_s <= slurm.poll_max_s, "slurm.poll_min_s", slurm.poll_min_s, "exceeds slurm.poll_max_s"),
        (live.heartbeat_s > 0, "liveness.heartbeat_s", live.heartbeat_s, "must be more than 0"),
        (live.heartbeat_s < live.suspect_s, "liveness.heartbeat_s", live.heartbeat_s, "must be below suspect_s"),
        (live.suspect_s < live.dead_s, "liveness.suspect_s", live.suspect_s, "must be below liveness.dead_s"),
        ("tcp" in order, "fabric.order", order, "lacks tcp, which introduces the other fabrics"),
        (relay_is_last, "fabric.order", order, "names relay before tcp: the relay is for hosts that tcp cannot reach"),
        (fabric.trusted or not opens(ucx.transports, "tcp"), "ucx.transports", ucx.transports, TCP_REFUSED),
        (_is_port_range(ucx.port_range), "ucx.port_range", ucx.port_range, "must be LOW-HIGH, e.g. 31000-31999"),
        (ucx.tcp_segment_bytes > 0, "ucx.tcp_segment_bytes", ucx.tcp_segment_bytes, "must be more than 0"),
        (ucx.keepalive_s > 0, "ucx.keepalive_s", ucx.keepalive_s, "must be more than 0"),
        (keep_dead >= 0, "telemetry.keep_dead", keep_dead, "must not be below 0"),
    )
    for holds, key, value, problem in rules:
        if not holds:
            raise ConfigError(key, str(value), loaded.origin(key), problem)


def _is_port_range(text: str) -> bool:
    low, _, high = text.partition("-")
    return not text or (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 1 << 16)


def _variable(key: str) -> str:
    return _PREFIX + key.replace(".", "__").upper()
