"""Assembles the parts of an agent that serve its host: those for its procs and programs, their output, and its log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from monarch_hpc.agent.agent import Agent
from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.output.log_files import LogFiles
from monarch_hpc.agent.output.own_log import OwnLog
from monarch_hpc.agent.output.proc_output import Outlet
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.procs.mpi_step import MpiSteps, StepSettings
from monarch_hpc.agent.procs.zygote_launch import ZygoteSettings
from monarch_hpc.agent.procs.zygote_pool import ZygotePool
from monarch_hpc.agent.programs.program import settings_of
from monarch_hpc.agent.programs.table import OwnRun, Programs
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.agent.resources.shm_folder import make_segments
from monarch_hpc.allocation.files import own_log_path
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine import cgroup
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message

__all__ = ["HostParts", "ToHead", "assemble"]


@dataclass(frozen=True, slots=True)
class ToHead:
    """How the parts reach the head, wherever it is.

    Args:
        send: sends it a message.
        is_backlogged: whether it takes messages more slowly than they come.
        forwarders: addresses of its agent; filled in when known.
        own_run: see `Programs`.
    """

    send: Callable[[Message], None]
    is_backlogged: Callable[[], bool]
    forwarders: list[str]
    own_run: OwnRun


@dataclass(frozen=True, slots=True)
class HostParts:
    """The parts.

    Attributes:
        segments: the folder for shared memory; empty if there is none.
        segments_held: the descriptor that holds it, for the life of this process.
    """

    settings: ProcSettings
    reaper: Reaper
    zygotes: ZygotePool
    files: LogFiles
    own_log: OwnLog
    programs: Programs
    agent: Agent
    segments: str
    segments_held: int


def assemble(
    engine: Engine,
    args: AgentArgs,
    grant: Grant,
    config: Config,
    zygote_settings: ZygoteSettings,
    addresses: list[str],
    listen_hosts: list[str],
    to_head: ToHead,
) -> HostParts:
    """Make the parts.

    Args:
        addresses: those that this process listens on.
        listen_hosts: IP addresses for procs to listen on.
    """
    reaper = Reaper(engine, cgroup.num_oom_kills)
    zygotes = ZygotePool(engine, reaper, zygote_settings)
    segments, segments_held = make_segments(args.allocation, args.rank)
    max_file_bytes = config.logs.max_file_bytes
    files = LogFiles(args.directory / "runs", max_file_bytes, lambda: engine.call_soon(agent.resume_output))
    own_log = OwnLog(partial(files.append, own_log_path(args.folder, args.rank)))
    outlet = Outlet(files, config.logs, to_head.send, to_head.is_backlogged)
    settings = ProcSettings.of(args, config, grant, addresses, listen_hosts, segments, to_head.forwarders)
    programs = Programs(engine, reaper, settings_of(args, max_file_bytes), to_head.own_run)
    steps = MpiSteps(
        engine, reaper, StepSettings.of(args, grant, zygote_settings.entry, segments, config.slurm.step_flags)
    )
    agent = Agent(engine, settings, zygotes, steps, reaper, programs, outlet, to_head.send)
    return HostParts(settings, reaper, zygotes, files, own_log, programs, agent, segments, segments_held)
