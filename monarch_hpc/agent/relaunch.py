"""Starts the agents of other hosts again: as a step of the job, or as a process on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.head.hosts.returns import HostReturns, ReturnWork
from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.allocation.files import HOSTS
from monarch_hpc.allocation.heads import newer_head
from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.files import open_output, private_dir
from monarch_hpc.supervision.relaunch import LaunchLimit, Relaunches
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["AgentLauncher", "agent_words", "begin_returns", "cpus_of"]

_MAX_OUTPUT_BYTES = 4 << 10
_NUM_LAST_LINES = 3


def begin_returns(
    returns: HostReturns,
    engine: Engine,
    reaper: Reaper,
    args: AgentArgs,
    config: Config,
    ask: SlurmQuery,
    term: int,
    superseded: Callable[[str], None],
) -> Callable[[], None]:
    """Let the head, which is in this agent, start the agents of lost hosts again, where it can.

    Args:
        term: the head's term.
        superseded: see `AgentLauncher`.

    Returns:
        `AgentLauncher.leave_steps`, which is to be called before this agent ends.
    """
    if args.slurm_job_id is None and not args.relaunches:
        return lambda: None  # others have started the agents: this host cannot
    heal = config.heal
    limit = LaunchLimit(heal.max_pending, heal.per_hour)
    launcher = AgentLauncher(engine, reaper, args, config, term, superseded)
    returns.begin(
        ReturnWork(
            Relaunches(heal.tries, heal.backoff_s, heal.backoff_max_s, limit),
            ask.ask_standing,
            launcher.launch,
            config.slurm.bootstrap_s,
        )
    )
    return launcher.leave_steps


def agent_words(arguments: tuple[str, ...], host: HostEntry, term: int) -> list[str]:
    """The options of the agent of *host*, from those of this one; of equal options the last one counts.

    Args:
        term: that of the head which starts it.
    """
    place = ("--rank", str(host.rank - host.first_rank), "--first-rank", str(host.first_rank))
    group = ("--group", host.group, "--component", str(host.component))
    return [*arguments, *place, *group, "--ready", "-1", "--held", "-1", "--again", str(term)]


class AgentLauncher:
    """Starts agents. All methods must be called on the engine's driver.

    Slurm may start them on hosts to which a head was cut off, and that have elected another one meanwhile: that one's
    agents would be ended. So neither this head nor the new agent goes on where the directory names a later head.

    Args:
        term: the head's term.
        superseded: called with the reason if another head rules.
    """

    def __init__(
        self,
        engine: Engine,
        reaper: Reaper,
        args: AgentArgs,
        config: Config,
        term: int,
        superseded: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._reaper = reaper
        self._args = args
        self._config = config
        self._term = term
        self._superseded = superseded
        self._sruns: set[int] = set()

    def launch(self, host: HostEntry, ended: Callable[[str, bool], None]) -> Callable[[], None]:
        """Start the agent of *host*; call *ended* once, when its step or process has ended.

        Args:
            ended: called with how it ended, and whether Slurm refused the step for now.

        Returns:
            What ends the step or process.
        """
        if superseded := newer_head(self._args.folder, self._term):
            self._engine.call_soon(partial(ended, superseded, False))
            self._engine.call_soon(partial(self._superseded, superseded))
            return lambda: None
        local = self._args.slurm_job_id is None
        path = self._output(host, local=local)
        try:
            descriptor = open_output(path)
            try:
                process = self._start_local(host, descriptor) if local else self._start_step(host, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            what = f"{'the agent' if local else 'srun'} could not be started: {error}"
            self._engine.call_soon(partial(ended, what, False))
            return lambda: None

        if not local:
            self._sruns.add(process.pid)

        def on_exit(how: Exit) -> None:
            self._sruns.discard(process.pid)
            process.returncode = how.code if how.code is not None else -(how.signal or 0)
            if process.stdin is not None:
                process.stdin.close()
            what = "the agent" if local else "srun, which was to start the agent,"
            lines = _last_lines(path)
            ended(f"{what} ended: {how}{lines}", not local and _is_refused(lines))

        self._reaper.watch(process.pid, on_exit)

        def end() -> None:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGTERM)  # on which srun ends the step

        return end

    def leave_steps(self) -> None:
        """End what waits for the ends of steps, but not the steps: this agent ends, and another head may rule theirs.

        A host without network never learns of their end. What cancels a step when its srun is killed is a process of
        srun's own, in its group: both have to be killed at once.
        """
        for pid in self._sruns:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _output(self, host: HostEntry, *, local: bool) -> Path:
        if local:
            return self._args.directory / f"{host.name}.again.err"
        return private_dir(self._args.folder / HOSTS) / f"{host.rank}.err"

    def _start_local(self, host: HostEntry, output: int) -> subprocess.Popen[bytes]:
        # The lifeline of this agent is also that of the other one: else it would end with this one, which has heirs.
        lifeline = os.dup(self._args.lifeline_fd)
        try:
            held = self._args.held_fd
            words = agent_words(self._args.arguments, host, self._term)
            words += ["--lifeline-fd", str(lifeline), "--held", str(held)]
            process = launch(
                [sys.executable, "-P", "-m", "monarch_hpc.agent", *words],
                self._args.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(lifeline,) if held < 0 else (lifeline, held),
                new_session=True,
            )
        finally:
            os.close(lifeline)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and is about to be reaped
            process.stdin.write(self._args.key)
            process.stdin.close()
        return process

    def _start_step(self, host: HostEntry, output: int) -> subprocess.Popen[bytes]:
        # A late import: few heads need it, and the Slurm modules would add a sixth to what an agent loads.
        from monarch_hpc.slurm.commands.argv import agent_step_argv, scrubbed

        args, job_id = self._args, host.job_id
        other = job_id != args.slurm_job_id
        command = [
            *self._config.agent.prefix,
            *("bash", str(args.directory / "agent.sh"), sys.executable),
            *agent_words(args.arguments, host, self._term),
        ]
        flags: dict[str, FlagValue] = {
            **self._config.slurm.step_flags,
            # The variables are those of this agent's job; the agent of another one has been granted what its job has.
            "cpus-per-task": str(len(host.cpus)) if other else cpus_of(args.environment, host.component),
            "gres": f"gpu:{len(host.gpus)}" if host.gpus else None,
        }
        argv = agent_step_argv(job_id, host.name, flags, command, host.component)
        return launch(
            argv,
            scrubbed(args.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            new_session=True,
        )


def cpus_of(environment: Mapping[str, str], component: int) -> str | None:
    """The CPUs that the job has on each host of a component; None where hosts differ in that, or Slurm does not say."""
    name = "SLURM_JOB_CPUS_PER_NODE" if component < 0 else f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{component}"
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get(name, ""))
    return None if match is None else match[1]


def _is_refused(words: str) -> bool:
    from monarch_hpc.slurm.commands.messages import refuses_for_now  # late, as above

    return refuses_for_now(words)


def _last_lines(path: Path) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_OUTPUT_BYTES))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return "".join(f": {line}" for line in lines[-_NUM_LAST_LINES:])
    return ""
