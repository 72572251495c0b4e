"""The process of an agent: takes its settings, forks the first zygote, and serves its host until the end."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.agent.children.predecessor import end_predecessor
from monarch_hpc.agent.procs.zygote_launch import StartingZygote, ZygoteSettings, fork_zygote, launch_zygote
from monarch_hpc.allocation.attempts import attempt_folder, attempt_identity
from monarch_hpc.allocation.files import KEY_BYTES
from monarch_hpc.allocation.heads import newer_head
from monarch_hpc.core.errors import ConfigError, MonarchError
from monarch_hpc.core.failpoints import FAILPOINTS_VARIABLE, arm
from monarch_hpc.core.machine.interfaces import host_name, raise_file_limit
from monarch_hpc.core.process.breakdown import break_down
from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.core.process.imports import uncollected
from monarch_hpc.core.process.parent import continue_at_parents_death
from monarch_hpc.core.storage.scratch import remove_unheld
from monarch_hpc.core.storage.shortage import shortage_note
from monarch_hpc.telemetry import recorder  # noqa: F401 loaded for the zygote, too, which is forked from this process
from monarch_hpc.transport import node  # noqa: F401 the same
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.faults import log_fault
from monarch_hpc.wire.control import table  # noqa: F401 the same
from monarch_hpc.wire.start import DEFAULT_ENTRY

if TYPE_CHECKING:
    from monarch_hpc.agent.service import Service

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
_FINISHED = signal.SIGUSR1  # sent by the engine's thread to the main thread


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Serve one host until the allocation ends; return the exit code."""
    options = _parse(arguments)
    name = f"local{options.rank}" if options.local else host_name(environment)
    os.umask(0o077)
    # The main thread takes signals by sigwait: a handler could run in the middle of the engine. SIGINT and SIGHUP
    # are meant for the terminal that an agent was started from, and are ignored.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # Some services that start programs ignore it: then the kernel would reap the children that are waited for here.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Orphans of procs become children of this process, which can then find and end them.
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, b"monarch-agent", 0, 0, 0)  # no space in it, see zygote.py
    continue_at_parents_death()
    raise_file_limit()
    forbid_core_dumps()
    allocation = attempt_identity(options.allocation, options.attempt)
    if options.again is not None:
        folder = attempt_folder(options.directory, options.attempt)
        if options.again and (superseded := newer_head(folder, options.again)):
            print(f"agent {name}: not started again: {superseded}", file=sys.stderr)
            return 1
        end_predecessor(allocation, options.allocation, options.rank)
    settings = ZygoteSettings(allocation, options.rank, options.entry, environment)
    # Before anything that procs must not inherit: the key, logging, threads. It goes on loading what procs need while
    # this process loads what agents need: the first proc has to wait for both.
    gc.freeze()  # what both share: the collector would write to it
    first_zygote = fork_zygote(settings) or launch_zygote(settings)
    logging.basicConfig(level=logging.INFO, format=f"agent {name}: %(message)s", stream=sys.stderr)
    try:
        code = _serve(options, tuple(arguments), name, environment, settings, first_zygote)
    except (MonarchError, OSError) as error:
        logging.error("%s%s", error, f"; {note}" if (note := shortage_note(error)) else "")
        code = error.exit_code if isinstance(error, MonarchError) else 1
        _end(first_zygote)  # perhaps it still holds the directory, which it has inherited
    if options.held >= 0:
        # The process that made the directory may have been killed; if it is alive, it still holds the directory.
        os.close(options.held)
        remove_unheld(options.directory)
    return code


def _serve(
    options: argparse.Namespace,
    arguments: tuple[str, ...],
    name: str,
    environment: Mapping[str, str],
    settings: ZygoteSettings,
    first_zygote: StartingZygote,
) -> int:
    with uncollected():
        from monarch_hpc.agent.agent_args import AgentArgs
        from monarch_hpc.agent.children.predecessor import agents_below
        from monarch_hpc.agent.rejoin import REJOIN, begin_anew
        from monarch_hpc.agent.resources.grant import read_grant
        from monarch_hpc.agent.service import Service
        from monarch_hpc.allocation.settings import read_config

        gc.freeze()  # they stay until the end
    arm(environment.get(FAILPOINTS_VARIABLE, ""), options.rank)
    key = _read_key()  # it comes last: the configuration is there
    if not options.lifeline or options.lifeline_fd:
        _close_input()
    config = read_config(options.directory)
    local_place = (options.rank, options.num_hosts) if options.local else None
    grant = read_grant(environment, config, local_place)
    args = AgentArgs(
        directory=options.directory,
        folder=attempt_folder(options.directory, options.attempt),
        allocation=settings.allocation,
        rank=options.rank,
        num_hosts=max(options.num_hosts, options.rank + 1),  # a head of an earlier job may have started this agent
        name=name,
        key=key,
        job_id=int(environment["SLURM_JOB_ID"]) if environment.get("SLURM_JOB_ID", "").isdecimal() else None,
        host_names=[""] * options.first_rank + _host_names(options, environment),
        environment=environment,
        group=options.group,
        component=options.component,
        ready_fd=options.ready,
        arguments=arguments,
        relaunches=options.relaunches,
        held_fd=options.held,
        lifeline_fd=options.lifeline_fd if options.lifeline else -1,
        rejoins_s=options.rejoins,
        first_rank=options.first_rank,
    )
    codes: list[int] = []

    def finished(code: int) -> None:
        codes.append(code)
        signal.pthread_kill(threading.main_thread().ident or 0, _FINISHED)

    engine = Engine()
    engine.on_fault = lambda what, error: (log_fault if engine.failure is None else break_down)(what, error)
    service = Service(engine, args, grant, config, settings, first_zygote, finished)
    # No other thread runs yet, so errors at startup are raised here.
    service.start()
    for pid in agents_below(options.allocation, options.rank) if options.rejoins else ():
        service.reaper.watch(pid, lambda _how: None)  # else they are taken for orphans of procs, and killed
    if options.lifeline:
        os.set_inheritable(args.lifeline_fd, False)
        os.set_blocking(args.lifeline_fd, False)
        engine.watch(args.lifeline_fd, lambda _mask: _check_lifeline(engine, service, args.lifeline_fd))
    engine.start()
    while not codes:
        if signal.sigwait(_SIGNALS) is signal.SIGTERM:
            service.termination.mark()
            engine.call_soon(service.termination.on_sigterm)
    engine.close()
    if codes[0] == REJOIN:
        begin_anew(args, config.agent.rejoin_s)
    return codes[0]


def _end(zygote: StartingZygote) -> None:
    """End the first zygote, of an agent that does not start."""
    with contextlib.suppress(ChildProcessError):  # it has ended
        if os.waitpid(zygote.pid, os.WNOHANG) == (0, 0):
            os.kill(zygote.pid, signal.SIGKILL)
            os.waitpid(zygote.pid, 0)


def _check_lifeline(engine: Engine, service: Service, fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(fd, 1):
            engine.unwatch(fd)
            service.end()


def _read_key() -> bytes:
    key = b""
    while len(key) < KEY_BYTES:
        data = os.read(0, KEY_BYTES - len(key))
        if not data:
            raise ConfigError(
                "", "", "standard input", f"{len(key)} bytes of the allocation's {KEY_BYTES}-byte key came"
            )
        key += data
    return key


def _close_input() -> None:
    """Let go of the key's file: its removal would leave a hidden file on NFS while it is open."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _host_names(options: argparse.Namespace, environment: Mapping[str, str]) -> list[str]:
    if options.local:
        return [f"local{rank}" for rank in range(options.num_hosts)]
    from monarch_hpc.core.text.hostlist import expand  # the zygote, a fork of this process, needs none

    # The step's list is in task order; the job's list may have more hosts.
    with contextlib.suppress(ConfigError):
        return expand(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
    return []


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m monarch_hpc.agent", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="the allocation's directory")
    parser.add_argument("--allocation", required=True, help="the allocation's uuid, 32 hexadecimal digits")
    parser.add_argument("--attempt", type=int, default=0, help="the job's attempt, from 1; 0 if there is no job")
    parser.add_argument("--rank", type=int, required=True, help="rank of this host, from 0")
    parser.add_argument(
        "--first-rank", type=int, default=0, help="rank of its job's first host, from which --rank counts"
    )
    parser.add_argument("--num-hosts", type=int, required=True, help="of the allocation, up to the last one of its job")
    parser.add_argument("--group", default="", help="name of this host's group; empty if there are no groups")
    parser.add_argument("--component", type=int, default=-1, help="of a heterogeneous job, that has this host")
    parser.add_argument("--local", action="store_true", help="all hosts are this machine: listen on loopback only")
    parser.add_argument("--lifeline", action="store_true", help="end at the end of standard input")
    parser.add_argument("--lifeline-fd", type=int, default=0, help="or at that of this descriptor")
    parser.add_argument("--relaunches", action="store_true", help="start agents of this machine again that were lost")
    parser.add_argument(
        "--again",
        type=int,
        metavar="TERM",
        help="take the place of an agent that was lost, and end it: started by the head of this term; by itself if 0",
    )
    parser.add_argument("--rejoins", type=float, default=0.0, help="ask for so many seconds to be seated again")
    parser.add_argument("--held", type=int, default=-1, help="descriptor that holds the directory, see core.storage")
    parser.add_argument("--ready", type=int, default=-1, help="pipe to write a byte to once the allocation is ready")
    parser.add_argument("--entry", default=DEFAULT_ENTRY, help="module:function that procs run")
    options = parser.parse_args(arguments)
    options.rank += options.first_rank
    return options
