"""Schema of the configuration: one frozen dataclass per section. configs/default.yaml has meanings and defaults."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeVar

from monarch_hpc.config.sections.fabric import FabricConfig, InterfacesConfig, RdmaConfig, UcxConfig
from monarch_hpc.config.sections.heal import HealConfig
from monarch_hpc.config.sections.logs import LogsConfig
from monarch_hpc.config.sections.run import RunConfig
from monarch_hpc.config.sections.slurm import FlagValue, LimitsConfig, SlurmConfig
from monarch_hpc.config.sections.tensor import TensorConfig
from monarch_hpc.core.dataclass import dataclass, hints_of
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.units import parse_size

__all__ = [
    "OWNER_ONLY",
    "SITE_ONLY",
    "AgentConfig",
    "Config",
    "FabricConfig",
    "FlagValue",
    "InterfacesConfig",
    "LimitsConfig",
    "LivenessConfig",
    "LoginConfig",
    "LogsConfig",
    "PathsConfig",
    "ProcsConfig",
    "RdmaConfig",
    "SlurmConfig",
    "TensorConfig",
    "TransportConfig",
    "UcxConfig",
    "as_document",
    "build",
    "convert",
    "from_document",
    "known_keys",
]

_Section = TypeVar("_Section")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


# A project's file may come from another person: it must not decide what runs as the user, where files are written, or
# who is trusted.
OWNER_ONLY = frozenset(
    {
        "paths.shared",
        "paths.state",
        "paths.home_on_compute",
        "paths.node_tmp",
        "agent.python",
        "agent.prologue",
        "agent.epilogue",
        "agent.env",
        "agent.prefix",
        "fabric.trusted",
        "procs.preload",
        "slurm.job_flags",
        "slurm.step_flags",
        "slurm.extra",
        "ucx.library",
        "ucx.transports",
    }
)

# Only profiles have these: when a profile applies, when it was checked, and against what. They configure nothing.
SITE_ONLY = frozenset({"match", "checked", "source"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class PathsConfig:
    """Folders for files; absolute paths."""

    shared: Path
    state: Path
    home_on_compute: Literal["rw", "ro", "none"]
    node_tmp: Path | None


@dataclass(frozen=True)
class AgentConfig:
    """The start of agents, and their grace periods."""

    python: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    hook_s: float
    env: Mapping[str, str]
    prefix: tuple[str, ...]
    grace_s: float
    attach_s: float
    outlast_s: float
    rejoin_s: float


@dataclass(frozen=True)
class ProcsConfig:
    """Start, devices and stop of procs."""

    start_s: float
    gpu_visible: Literal["own-first", "own", "all"]
    gpu_order: tuple[str, ...]
    gpu_variable: Literal["auto", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    bind: Literal["auto", "none"]
    mpi: str
    preload: tuple[str, ...]
    stop_s: float
    cause_s: float
    actor_threads: int
    heal_s: float
    kept_bytes: int
    poison_lives: int


@dataclass(frozen=True)
class LivenessConfig:
    """Heartbeats, and the silence after which a host is suspect or dead."""

    heartbeat_s: float
    suspect_s: float
    dead_s: float
    fence_s: float


@dataclass(frozen=True)
class TransportConfig:
    """Limits of channels."""

    handshake_s: float
    max_half_open: int
    max_frame_bytes: int
    list_pieces: int
    send_queue_bytes: int
    mailbox_bytes: int
    cast_direct: int
    cast_fanout: int
    cast_shared_bytes: int
    connect_s: float
    around_after_s: float
    relay_s: float
    cut_s: float


@dataclass(frozen=True)
class RecordingConfig:
    """Records of procs and samples of hosts: how many, how long they are kept, and answers to questions about them."""

    clock_exchanges: int
    clock_interval_s: float
    keep_dead: int
    sample_s: float
    keep: Literal["auto", "always", "never"]
    keep_bytes_per_host: int
    keep_per_s: int
    ship_s: float
    compact_s: float
    max_answer_bytes: int
    otlp_url: str


@dataclass(frozen=True)
class LoginConfig:
    """The site's rules for login nodes."""

    controller: Literal["auto", "here", "host0"]
    submit_from_compute: bool


@dataclass(frozen=True)
class SubmititConfig:
    """Jobs of submitit on an allocation."""

    idle_s: float
    notice_s: float


@dataclass(frozen=True)
class Config:
    """The whole configuration."""

    site: str
    slurm: SlurmConfig
    limits: LimitsConfig
    paths: PathsConfig
    agent: AgentConfig
    procs: ProcsConfig
    heal: HealConfig
    liveness: LivenessConfig
    transport: TransportConfig
    fabric: FabricConfig
    ucx: UcxConfig
    rdma: RdmaConfig
    logs: LogsConfig
    telemetry: RecordingConfig
    tensor: TensorConfig
    run: RunConfig
    login: LoginConfig
    submitit: SubmititConfig


@functools.cache
def known_keys() -> Mapping[str, object]:
    """Return the type of every key, by dotted key."""
    return types.MappingProxyType(dict(_keys_of(Config, "")))


def convert(key: str, value: object, kind: object, source: str) -> object:
    """Return *value* converted to the type of *key*.

    Args:
        key: dotted key, for the error and for the unit in its name.
        value: as parsed from YAML.
        kind: the type, as in `known_keys`.
        source: origin of the value, for the error.

    Raises:
        ConfigError: *value* has a wrong type.
    """
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind)
    if origin is Literal:
        if value in typing.get_args(kind):
            return value
        raise _wrong(key, value, source, "one of " + ", ".join(typing.get_args(kind)))
    if origin is tuple:
        return _list(key, value, typing.get_args(kind)[0], source)
    if origin is Mapping:
        return _mapping(key, value, typing.get_args(kind)[1], source)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise _wrong(key, value, source, "true or false")
    if kind in (int, float):
        return _number(key, value, source, whole=kind is int)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and _printable(value):
        return Path(value) if kind is Path else value
    raise _wrong(key, value, source, "a string of printable characters")


def build(values: Mapping[str, object]) -> Config:
    """Make a configuration from a converted value for each key of `known_keys`."""
    return _build(Config, "", values)


def as_document(section: _Dataclass) -> dict[str, object]:
    """Return a configuration, or one section, as plain data for JSON: sections as objects, paths as strings."""
    return {name: _plain(value) for name, value in dataclasses.asdict(section).items()}


def from_document(section: Callable[..., _Section], document: object, source: str) -> _Section:
    """Make a configuration, or a section, from the output of `as_document`.

    Args:
        section: class of the result.
        document: the plain data.
        source: origin of *document*, for the error.

    Raises:
        ConfigError: a key is missing or has a wrong type.
    """
    values: dict[str, object] = {}
    for key, kind in _keys_of(section, ""):
        *outer, name = key.split(".")
        holder = document
        for part in outer:
            holder = holder.get(part) if isinstance(holder, Mapping) else None
        if not isinstance(holder, Mapping) or name not in holder:
            raise ConfigError(key, "missing", source, "the allocation was made by another version of monarch-hpc")
        values[key] = convert(key, holder[name], kind, source)
    return _build(section, "", values)


@functools.cache
def _hints(section: Callable[..., object]) -> Mapping[str, object]:
    # Cached, since every hint is compiled anew.
    assert isinstance(section, type)
    return hints_of(section)


def _keys_of(section: Callable[..., object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, kind in _hints(section).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _keys_of(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _build(section: Callable[..., _Section], prefix: str, values: Mapping[str, object]) -> _Section:
    fields: dict[str, object] = {}
    for name, kind in _hints(section).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields[name] = _build(kind, f"{prefix}{name}.", values)
        else:
            fields[name] = values[prefix + name]
    # The names are the section's fields, and each value was converted to its field's type.
    return section(**fields)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _list(key: str, value: object, kind: object, source: str) -> tuple[object, ...]:
    known = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    wanted = f"a list of some of {', '.join(known)}, each once" if known else "a list of strings, e.g. [a, b]"
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) and _printable(part) for part in value):
        raise _wrong(key, value, source, wanted)
    if known and (not set(value) <= set(known) or len(set(value)) < len(value)):
        raise _wrong(key, value, source, wanted)
    return tuple(value)


def _mapping(key: str, value: object, kind: object, source: str) -> Mapping[str, object]:
    if kind == FlagValue:
        if isinstance(value, Mapping) and all(_is_flag(*item) for item in value.items()):
            return {name: str(flag) if type(flag) is int else flag for name, flag in value.items()}
        raise _wrong(key, value, source, "a mapping of flag names without dashes to a string, a number, true or null")
    if not isinstance(value, Mapping):
        raise _wrong(key, value, source, "a mapping of names to values")
    if kind is str and not all(isinstance(name, str) and _VARIABLE.fullmatch(name) for name in value):
        raise _wrong(key, value, source, "a mapping of names of variables to strings")
    return {str(name): convert(key, part, kind, source) for name, part in value.items()}


def _number(key: str, value: object, source: str, *, whole: bool) -> int | float:
    if "_bytes" in key and isinstance(value, str):
        try:
            return parse_size(value)
        except ConfigError as error:
            raise ConfigError(key, value, source, error.problem) from error
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        if not whole:
            return float(value)
        if isinstance(value, int):
            return value
    unit = " or a size such as 64MiB" if "_bytes" in key else ""
    raise _wrong(key, value, source, ("a whole number" if whole else "a number") + ", 0 or more" + unit)


def _is_flag(name: object, value: object) -> bool:
    plain_name = isinstance(name, str) and name.isascii() and name.replace("-", "").isalnum() and name[0] != "-"
    plain_value = value is None or isinstance(value, bool | int) or (isinstance(value, str) and _printable(value))
    return plain_name and plain_value


def _printable(text: str) -> bool:
    # A line break in a value would add a line to a batch script.
    return text.isprintable()


def _wrong(key: str, value: object, source: str, wanted: str) -> ConfigError:
    return ConfigError(key, repr(value), source, f"must be {wanted}")
