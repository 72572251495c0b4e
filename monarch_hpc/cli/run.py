"""`monarch-hpc run`: runs a program on an allocation, and leaves the allocation as it was before."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from monarch_hpc.allocation.ready import check_allocation
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.child import Child, End, await_signal, block_signals, wake
from monarch_hpc.cli.main import load_to_start
from monarch_hpc.cli.option_values import seconds
from monarch_hpc.cli.output import Console, Format, current_output
from monarch_hpc.cli.runs.attach import exit_raw_option, on_interrupt_option, on_loss_option
from monarch_hpc.cli.runs.command_line import Missing, plan_argv
from monarch_hpc.cli.runs.limits import LimitWatch, cpu_limit_s
from monarch_hpc.cli.runs.loss import JOB_END_S, why_lost
from monarch_hpc.cli.runs.place import OnInterrupt, choose_place
from monarch_hpc.config import Config
from monarch_hpc.config.program import (
    DIRECTORY_VARIABLE,
    KEEP_VARIABLE,
    ON_LOSS_VARIABLE,
    RUN_VARIABLE,
    read_failpoints,
    without_program,
)
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import EXIT_CODES, DeathKind
from monarch_hpc.core.errors import AllocationError, MonarchError, PeerLost
from monarch_hpc.core.failpoints import arm, failpoint
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.core.process.exit import TIMED_OUT
from monarch_hpc.core.process.imports import uncollected
from monarch_hpc.wire.control.runs import TAKEN_OVER

if TYPE_CHECKING:
    from monarch_hpc.attach.local_agents import LocalAgents
    from monarch_hpc.cli.owner import RunOwner

__all__ = ["ProgramCommand", "command"]

_CLOSE_S = 15.0
"""Time that agents may take to end a run, beyond the procs' grace; the agents have deadlines of their own."""
_REPORT_CLOSING_S = 1.0


class ProgramCommand(click.Command):
    """Remembers whether the program came after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        before = given[: len(given) - len(ctx.params["program"] or ())]  # None while a shell completes words
        ctx.params["plain"] = before[-1:] == ["--"]
        return rest


@dataclass(frozen=True, slots=True)
class _Target:
    """The allocation that a program runs on; *name* is empty if the allocation ends with the program."""

    directory: Path
    name: str = ""


@click.command(
    cls=ProgramCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "-a",
    "--allocation",
    "name",
    type=ALLOCATION,
    metavar="NAME",
    help="The allocation; needed only if there are several.",
)
@click.option("--local", "num_local", type=click.IntRange(1), metavar="N", help="Use N embedded hosts on this machine.")
@click.option(
    "--needs",
    metavar="TIME",
    callback=seconds,
    help="Do not start if the allocation ends before: 30m, 2h; exit code 75.",
)
@click.option(
    "--timeout", metavar="TIME", callback=seconds, help="End the program after this time: 30m, 2h; exit code 124."
)
@click.option(
    "--on",
    "place",
    type=click.Choice(["here", "host0"]),
    help="Where the program runs: here, or on the allocation's first host, where it outlives this command. Default: "
    "config key login.controller.",
)
@on_loss_option
@click.option(
    "--keep", is_flag=True, help="Keep the program's named meshes when it ends, for later runs; see 'monarch-hpc mesh'."
)
@click.option("--detach", is_flag=True, help="Start the program on the first host, print its run, and return.")
@on_interrupt_option
@exit_raw_option
@click.option("--json", "as_json", is_flag=True, help="With --detach: print the run as one JSON object.")
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- CMD [ARGS]..."
)
def command(
    name: str | None,
    num_local: int | None,
    needs: int | None,
    timeout: int | None,
    place: Literal["here", "host0"] | None,
    on_loss: str | None,
    keep: bool,
    detach: bool,
    on_interrupt: str | None,
    as_json: bool,
    program: tuple[str, ...],
    plain: bool,
) -> int:
    """Run a script on an allocation.

    The program's output, exit code and signals pass through; the first Ctrl-C stops the run, never the
    allocation. Without an allocation the program runs on one embedded host of this machine; inside a Slurm job, on
    that job's hosts. A program that runs on the first host outlives this command: see 'attach' and 'cancel'.
    """
    if name is not None and num_local is not None:
        raise click.UsageError("--allocation and --local exclude each other")
    if place == "here" and (detach or on_interrupt == "detach"):
        raise click.UsageError("a program that runs here ends with this command; --detach goes with --on host0")
    if num_local is not None and (detach or place == "host0"):
        raise click.UsageError("--local makes hosts that end with this command; --detach and --on host0 exclude it")
    if num_local is not None and on_loss not in (None, "stop"):
        raise click.UsageError("--local makes hosts that end with this command; --on-loss has nothing to hold there")
    if num_local is not None and keep:
        raise click.UsageError("--local makes hosts that end with this command; --keep has nowhere to keep meshes")
    if as_json and not detach:
        raise click.UsageError("--json goes with --detach: otherwise the output is the program's own")
    output = current_output()
    if as_json:
        output.format = Format.JSON
    limit_s = 0.0 if timeout is None else float(timeout)
    argv = plan_argv(program, plain=plain)
    if isinstance(argv, Missing):
        output.error(argv.kind, argv.sentence, output.exit_code(argv.exit_code))
        return output.exit_code(argv.exit_code)
    with contextlib.ExitStack() as resources:
        agents = None
        if num_local is not None:
            from monarch_hpc.attach.local_agents import LocalAgents

            # Their start takes longer than to load the configuration, which they need at its end.
            agents = resources.enter_context(contextlib.closing(LocalAgents(num_local)))
        config = load_to_start({}).config
        if needs is not None and num_local is None:
            from monarch_hpc.cli.allocations.time_left import require_time

            require_time(config, name, needs, os.environ)
        target = _choose(name, agents, config, resources, output)
        wanted = "host0" if detach or on_interrupt == "detach" else place
        chosen = choose_place(wanted, config.login.controller, cpu_limit_s(), on_slurm=bool(target.name))
        held = (on_loss or config.run.on_loss) if target.name else "stop"
        kept = {KEEP_VARIABLE: "1"} if keep else {}
        if not chosen.on_host:
            return _supervise(target, argv, config, output, held, kept, limit_s)
        from monarch_hpc.cli.runs.foreground import run_on_host

        if argv[0] == sys.executable and config.agent.python:
            argv[0] = config.agent.python
        stop = OnInterrupt(on_interrupt or "cancel")
        outcome = run_on_host(
            *(target.name, target.directory, argv, {**os.environ, **kept}, config, output, chosen.why, stop, held),
            detach=detach,
            limit_s=limit_s,
        )
    if outcome.stopped:
        _tell_stopped(target.name, output)
    return outcome.exit_code


# ---- which allocation ----


def _choose(
    name: str | None, agents: LocalAgents | None, config: Config, resources: contextlib.ExitStack, output: Console
) -> _Target:
    if agents is not None:
        with uncollected():  # what the run needs next, while the agents load what they need themselves
            from monarch_hpc.cli import owner  # noqa: F401
        agents.open(config)
        return _Target(agents.directory)
    from monarch_hpc.slurm import Allocations, find_job_here, open_inside

    if name is None and find_job_here(os.environ) is not None:
        from monarch_hpc.attach.head.orders import shut_down

        end = partial(shut_down, timeout_s=config.procs.stop_s)
        return _Target(resources.enter_context(open_inside(config, os.environ, end)))
    allocations = Allocations.open(config)
    if name is None and not any(record.live for record in allocations.registry.records()):
        from monarch_hpc.attach.embedded import open_local

        output.progress("no allocation: running on one embedded host of this machine")
        return _Target(resources.enter_context(open_local(1, config)))
    record = allocations.find(name)
    if record.ended is not None:
        raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
    try:
        check_allocation(record.directory)
    except AllocationError as error:
        raise why_lost(config, record.name, error.problem, wait_s=0.0) from error
    return _Target(record.directory, record.name)


# ---- the run ----


def _supervise(
    target: _Target,
    argv: list[str],
    config: Config,
    output: Console,
    on_loss: str,
    kept: Mapping[str, str],
    limit_s: float,
) -> int:
    """Start the program, hold its run open while it lives, and return its exit code."""
    check_allocation(target.directory)
    run = new_run_id()
    environment = {
        **without_program(os.environ),
        **kept,
        DIRECTORY_VARIABLE: str(target.directory),
        RUN_VARIABLE: run,
        ON_LOSS_VARIABLE: on_loss,
    }
    # Never unblocked: from here on all waits have deadlines, and receive signals themselves.
    block_signals()
    # The program starts first, and this process attaches to the head while the program's interpreter starts: that
    # hides 0.1 s of imports and the handshake. The usual faults of an allocation were found in its files before.
    # The program attaches by itself, and the head accepts this process as the run's owner in either order.
    child = Child(argv, environment)
    arm(read_failpoints())
    failpoint("run.owner")
    try:
        with uncollected():
            from monarch_hpc.cli.owner import RunOwner
        owner = RunOwner(target.directory, run, " ".join(argv), config, wake, on_loss)
    except MonarchError as error:
        child.end(config.run.stop_grace_s)
        if isinstance(error, PeerLost) and target.name:
            raise why_lost(config, target.name, str(error), JOB_END_S) from error
        raise
    limits = LimitWatch(child.pid, output.warn)
    if limits.needed:
        owner.every(limits.period_s, limits.check)
    try:
        end = child.wait(
            lambda: bool(owner.lost or owner.refusal),
            config.run.stop_grace_s,
            lambda: not owner.deadline.passed(),
            Deadline(limit_s) if limit_s else None,
        )
        # A signal that was not asked for is a loss: a held run is left open, not closed.
        killed = end is End.ITSELF and child.killed and on_loss != "stop"
        if killed:
            _await_opened(owner, config)
        else:
            _close(owner, child.exit_code, config, output)
    finally:
        owner.leave()
    if TAKEN_OVER in owner.lost:
        code = output.exit_code(EXIT_CODES[DeathKind.FENCED])
        output.error("TakenOver", f"{owner.lost}; this program has ended", code)
        return code
    if killed:
        from monarch_hpc.cli.runs.takeover import tell_lost

        tell_lost(run, target.name, target.directory, on_loss, config, output)
    if end is End.ABANDONED or (owner.lost and child.exit_code):
        problem = f"lost its head while the program ran: {owner.lost}" if owner.lost else owner.refusal
        if target.name:
            raise why_lost(config, target.name, problem, JOB_END_S, owner.ending)
        kind = owner.ending.kind if owner.ending else DeathKind.UNKNOWN
        raise AllocationError(name_of(target.directory), problem, kind)
    if end is End.STOPPED and target.name:
        _tell_stopped(target.name, output)
    if end is End.LATE:
        output.warn(f"the program was ended: its limit of {limit_s:g} s was over")
        return TIMED_OUT
    return child.exit_code


def _tell_stopped(name: str, output: Console) -> None:
    output.progress(
        f"the run was stopped; allocation '{name}' is still there: 'monarch-hpc run -a {name} SCRIPT' uses it again, "
        f"'monarch-hpc release {name}' gives it back"
    )


def _await_opened(owner: RunOwner, config: Config) -> None:
    """Wait until the head knows the owner of a run that it is to hold: a program may be killed before it does."""
    deadline = Deadline(config.transport.connect_s)
    while not (owner.opened or owner.lost or owner.refusal or deadline.passed()):
        if await_signal(deadline.left_s()):
            return


def _close(owner: RunOwner, code: int, config: Config, output: Console) -> None:
    """End the run, and wait until nothing of it is left."""
    owner.close(code)
    deadline = Deadline(config.procs.stop_s + config.agent.grace_s + _CLOSE_S)
    patience = Deadline(_REPORT_CLOSING_S)
    reported = False
    while not (owner.closed or owner.lost or owner.refusal):
        if deadline.passed():
            output.warn(f"hosts did not confirm within {deadline.timeout_s:.0f} s that the run's procs are gone")
            return
        if patience.passed() and not reported:
            reported = True
            output.progress("waiting for the run's procs to end")
        if await_signal(deadline.left_s() if reported else patience.left_s()):
            return  # the head ends the run by itself
