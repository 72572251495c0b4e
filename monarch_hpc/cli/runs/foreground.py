"""Starts a program on an allocation's first host, and follows it or leaves it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from monarch_hpc.allocation.ready import check_allocation
from monarch_hpc.attach.program_order import plan_order
from monarch_hpc.cli.output import Console
from monarch_hpc.cli.runs.place import OnInterrupt
from monarch_hpc.cli.runs.session import Outcome, Session, tell_detached
from monarch_hpc.cli.runs.terminal import Terminal, has_terminal, input_waits
from monarch_hpc.config.schema import Config
from monarch_hpc.core.ids import new_run_id

__all__ = ["run_on_host"]


def run_on_host(
    name: str,
    directory: Path,
    argv: Sequence[str],
    environ: Mapping[str, str],
    config: Config,
    output: Console,
    why: str,
    on_interrupt: OnInterrupt,
    on_loss: str,
    *,
    detach: bool,
    limit_s: float,
) -> Outcome:
    """Start *argv* on the head's host of allocation *name* in *directory*, and follow it unless *detach*.

    Args:
        why: why it runs there, to be shown.
        on_loss: see config key `run.on_loss`.
        limit_s: time after which the program is ended; 0 for none.

    Raises:
        AllocationError, VersionMismatch, TransportError: it cannot be started, or contact with it was lost for good.
    """
    host = check_allocation(directory).head_name
    run = new_run_id()
    terminal = not detach and has_terminal()
    reads = not detach and (terminal or input_waits())
    order = plan_order(run, argv, environ, Terminal.size() if terminal else None, reads=reads)
    order = replace(order, on_loss=on_loss, hold_s=config.run.hold_s)
    order = replace(order, limit_s=limit_s, grace_s=config.run.stop_grace_s)
    session = Session(name, directory, run, config, output, on_interrupt, first=0, terminal=terminal, reads=reads)
    session.start(order)
    reason = f" ({why})" if why else ""
    next_commands = f"'monarch-hpc attach {run}' shows it, 'monarch-hpc cancel {run}' ends it"
    if detach:
        session.wait_until_started()
        session.leave()
        output.progress(f"run {run} on {host}{reason}: {next_commands}")
        output.show({"run": run, "host": host}, run, [run])
        return Outcome(0)
    output.progress(f"run {run} on {host}{reason}; it outlives this terminal: {next_commands}")
    outcome = session.follow()
    tell_detached(outcome, run, output)
    return outcome
