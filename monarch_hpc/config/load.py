"""Loads the configuration of this process: merges its layers, of which later ones win, and keeps all origins."""

from __future__ import annotations

import functools
import os
import pwd
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from monarch_hpc.config.runtime_layer import runtime_settings
from monarch_hpc.config.schema import OWNER_ONLY, Config, build, convert, known_keys
from monarch_hpc.config.sections.fabric import TCP_SEGMENT_MAX_BYTES
from monarch_hpc.config.setting import Setting, unknown_key
from monarch_hpc.config.shipped import read_shipped
from monarch_hpc.config.site import Profile, find_cluster_name
from monarch_hpc.config.site_layer import ADMIN_FOLDER, own_settings, read_site_layer
from monarch_hpc.config.tls import TCP_REFUSED, opens
from monarch_hpc.config.trusted_file import read_trusted
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.ownership import others_may_write, unsafe_folder

__all__ = ["Loaded", "load", "load_config"]

_PREFIX = "MONARCH_HPC_"
_PROJECT_FILE = "monarch-hpc.yaml"
_MAX_ANSWER_BYTES = 32 << 20
"""An answer is the body of one frame, of at most 64 MiB, in which a quote takes two bytes."""

_SLURM_KEYS = ("account", "partition", "qos", "reservation", "constraint")
_log = Logger(__name__)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", re.ASCII)


@dataclass(frozen=True)
class Loaded:
    """A configuration with the origins of its values; *profile* is the site's, None if no profile matches."""

    config: Config
    settings: Mapping[str, Setting] = field(repr=False)
    profile: Profile | None = None

    def origin(self, key: str) -> str:
        """Return the origin of the value of *key*: ``file:line``, ``$VARIABLE``, ``configure()`` or ``command line``.

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
    name, cluster_name = os.uname().nodename, find_cluster_name(os.environ)
    return load_config(os.environ, cwd, name, cluster_name, flags or {}, runtime_settings())


def load_config(
    environ: Mapping[str, str],
    cwd: Path,
    hostname: str,
    cluster_name: str | None,
    flags: Mapping[str, object],
    calls: Mapping[str, object] = MappingProxyType({}),
    admin: Path = ADMIN_FOLDER,
) -> Loaded:
    """Load the configuration for a process with this environment.

    Args:
        environ: its environment.
        cwd: its working directory; the project's file is searched from there upwards.
        hostname: name of its machine.
        cluster_name: Slurm's ClusterName; None if there is no Slurm.
        flags: as for `load`.
        calls: dotted key -> value as the program gave it to `configure`.
        admin: the administrators' folder.
    """
    home = Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    chosen_by_people = [
        *_read_own(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "monarch-hpc" / "config.yaml"),
        *_read_project(cwd, home),
        *_from_slurm_variables(environ),
        *_from_variables(environ),
        *_from_values(calls, "configure()"),
        *_from_values(flags, "command line"),
    ]
    wanted = next((setting for setting in reversed(chosen_by_people) if setting.key == "site"), None)
    site = read_site_layer(wanted, environ, hostname, cluster_name, admin)
    layers = [*read_shipped("default.yaml", head=False), *site.settings]
    merged = {setting.key: setting for setting in [*layers, *chosen_by_people]}
    values: dict[str, object] = {}
    keys = known_keys()
    flags_of: dict[str, dict[str, object]] = {}
    for name, setting in merged.items():
        key = name
        while key and key not in keys:
            key = key.rpartition(".")[0]
        if key != name:  # one flag of a mapping
            flags_of.setdefault(key, {})[name.removeprefix(f"{key}.")] = setting.value
    for key in keys:
        if key in merged and key not in flags_of:
            setting = merged[key]
            values[key] = _expand(setting, environ, home) if isinstance(setting.value, Path) else setting.value
        else:
            values[key] = flags_of.get(key, {})
    # Empty stands for this process's interpreter, whose path no file can know.
    values["agent.python"] = values["agent.python"] or sys.executable
    loaded = Loaded(build(values), merged, site.profile)
    _check(loaded)
    return loaded


def _read_own(path: Path) -> list[Setting]:
    """Read a user's or project's file; return no settings if there is none."""
    text = read_trusted(path)
    return [] if text is None else own_settings(text, path)


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
                yield Setting(f"slurm.{key}", _parse_value(f"slurm.{key}", environ[variable], origin), origin)
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
        yield from _split(key, _parse_value(key, text, origin), origin)


def _parse_value(key: str, text: str, origin: str) -> object:
    from monarch_hpc.config.document import parse_value  # late: it loads PyYAML

    return parse_value(key, text, origin)


def _from_values(values: Mapping[str, object], origin: str) -> Iterator[Setting]:
    keys = known_keys()
    for key, value in values.items():
        if value is None:
            continue
        if key not in keys:
            raise unknown_key(key, origin)
        yield from _split(key, convert(key, value, keys[key], origin), origin)


def _split(key: str, value: object, origin: str) -> Iterator[Setting]:
    if isinstance(value, Mapping):
        yield from (Setting(f"{key}.{flag}", flag_value, origin) for flag, flag_value in value.items())
    else:
        yield Setting(key, value, origin)


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
    telemetry = loaded.config.telemetry
    keep_dead, max_answer_bytes = telemetry.keep_dead, telemetry.max_answer_bytes
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
        (
            _is_port_range(fabric.port_range),
            "fabric.port_range",
            fabric.port_range,
            "must be LOW-HIGH, e.g. 31000-31999",
        ),
        (_is_port_range(ucx.port_range), "ucx.port_range", ucx.port_range, "must be LOW-HIGH, e.g. 31000-31999"),
        (
            0 < ucx.tcp_segment_bytes <= TCP_SEGMENT_MAX_BYTES,
            "ucx.tcp_segment_bytes",
            ucx.tcp_segment_bytes,
            f"must be from 1 to {TCP_SEGMENT_MAX_BYTES}, the size of the buffers in which all processes receive",
        ),
        (ucx.keepalive_s > 0, "ucx.keepalive_s", ucx.keepalive_s, "must be more than 0"),
        (telemetry.clock_exchanges > 0, "telemetry.clock_exchanges", telemetry.clock_exchanges, "must be more than 0"),
        (telemetry.clock_interval_s > 0, "telemetry.clock_interval_s", telemetry.clock_interval_s, "must be above 0"),
        (telemetry.sample_s > 0, "telemetry.sample_s", telemetry.sample_s, "must be more than 0"),
        (telemetry.ship_s > 0, "telemetry.ship_s", telemetry.ship_s, "must be more than 0"),
        (telemetry.compact_s > 0, "telemetry.compact_s", telemetry.compact_s, "must be more than 0"),
        (telemetry.keep_per_s > 0, "telemetry.keep_per_s", telemetry.keep_per_s, "must be more than 0"),
        (_is_url(telemetry.otlp_url), "telemetry.otlp_url", telemetry.otlp_url, "must be like http://collector:4318"),
        (keep_dead >= 0, "telemetry.keep_dead", keep_dead, "must not be below 0"),
        (
            0 < max_answer_bytes <= _MAX_ANSWER_BYTES,
            "telemetry.max_answer_bytes",
            max_answer_bytes,
            f"must be from 1 to {_MAX_ANSWER_BYTES}: an answer is one control message",
        ),
    )
    for holds, key, value, problem in rules:
        if not holds:
            raise ConfigError(key, str(value), loaded.origin(key), problem)


def _is_port_range(text: str) -> bool:
    low, _, high = text.partition("-")
    return not text or (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 1 << 16)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return not text or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:  # a port that is not one
        return False


def _variable(key: str) -> str:
    return _PREFIX + key.replace(".", "__").upper()
