"""Takes over a run: its procs get this program as theirs, and its meshes are found again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, cast

from monarch_hpc.actor.fault import print_error
from monarch_hpc.actor.kept.takes import Takes
from monarch_hpc.actor.messages.payload import region_of
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.config.program import read_program
from monarch_hpc.core.arguments import check_text
from monarch_hpc.core.death import EXIT_CODES, Death, DeathKind
from monarch_hpc.core.errors import AllocationError, TransportError
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.ids import new_incarnation, number_in_program
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.plan import MeshOwner, ProcPlan
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.program.allocations.opening import find_only, open_named
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.program.takeover.found_actors import find_actors, free_name
from monarch_hpc.mesh.program.takeover.roll import ref_of
from monarch_hpc.mesh.program.takeover.survey import SurveyedProc, survey
from monarch_hpc.mesh.program.takeover.taken_run import TakenRun, UnfetchedAnswer
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.procs import StopProcs
from monarch_hpc.wire.control.runs import TAKEN_OVER
from monarch_hpc.wire.serializer import loads

__all__ = ["takeover"]

_GONE = "it had ended, or its host was lost, before this program took the run over"


def takeover(run: str = "", allocation: str | None = None) -> TakenRun:
    """Take over a run whose program is lost, or still lives: that one is told, and exits with code 77.

    The run's procs, and the actors in them, are this program's from here on: it gets their failures, and they end with
    it. What their earlier program has asked of them goes on meanwhile. If several programs take a run over at once, one
    of them gets it, and the others exit with code 77.

    Args:
        run: the run's id, as `monarch-hpc status` shows it; may be left out under `monarch-hpc attach RUN --takeover`.
        allocation: name of the run's allocation; needed only if there are several, and not under that command.

    Returns:
        The run's meshes by name, and the answers that the earlier program has not read.

    Raises:
        AllocationError: there is no such run, or the allocation cannot be reached.
        TypeError: an argument is not a string.
        ValueError: no run is named.
        SystemExit: another program has taken the run over; code 77.
    """
    check_text("run", run)
    if allocation is not None:
        check_text("allocation", allocation, filled=True)
    program = read_program()
    if not run and not program.takes:
        raise ValueError("name the run to take over; 'monarch-hpc status' lists the runs of all allocations")
    controller = Controller.instance()
    try:
        if program.takes and run in ("", program.run):
            tenancy = controller.tenancies.default()
        elif program.directory is not None and allocation is None:
            tenancy = controller.tenancies.take_over(run, program.directory)
        else:
            tenancy = controller.tenancies.take_over(run, *open_named(allocation or find_only()))
    except AllocationError as error:
        if TAKEN_OVER in str(error):
            _leave(str(error))
        raise
    return _Adoption(controller, tenancy).perform()


def _leave(why: str) -> NoReturn:
    print_error(f"monarch-hpc: {why}; this program ends")
    raise SystemExit(EXIT_CODES[DeathKind.FENCED])


class _Adoption:
    def __init__(self, controller: Controller, tenancy: Tenancy) -> None:
        self._controller = controller
        self._tenancy = tenancy
        self._takes = Takes.of(controller)
        self._dead: dict[int, Death] = {}
        self._meshes: dict[str, ProcMesh | ActorMesh[Any]] = {}
        self._problems: dict[str, str] = {}

    def perform(self) -> TakenRun:
        tenancy, roll = self._tenancy, self._tenancy.roll
        if roll is None:
            raise AllocationError(tenancy.name, f"this program uses run {tenancy.run} already, and cannot take it over")
        if not roll.complete.wait(tenancy.start_s):
            raise AllocationError(tenancy.name, tenancy.over or "its head agent does not tell of the run's procs")
        alive = [
            ref_of(ready, self._host_name(key.host), tenancy.allocation)
            for key, ready in list(roll.started.items())
            if key not in roll.ended
        ]
        found = survey(self._controller, alive, self._prepare, self._takes.list, tenancy.start_s)
        by_mesh: dict[int, list[SurveyedProc]] = {}
        for finding in found:
            by_mesh.setdefault(finding.proc.mesh, []).append(finding)
        failpoint("program.takeover")
        done = Flag(self._controller.engine)
        failures: list[BaseException] = []

        def adopt() -> None:
            try:
                for number, findings in sorted(by_mesh.items()):
                    self._adopt(number, findings)
                roll.closed = True
                for ended in list(roll.ended.values()):
                    if ended.proc in tenancy.procs:  # it has ended meanwhile
                        tenancy.on_control(ended)
                for finding in found:
                    channel = self._controller.connections.open_line(finding.proc.incarnation)
                    if channel is not None and not finding.problem:
                        self._takes.supervise(channel)
            except BaseException as error:  # noqa: BLE001 raised to the caller
                failures.append(error)
            done.set()

        self._controller.engine.call_soon(adopt)
        done.wait()
        if failures:
            raise failures[0]
        unfetched = [answer for finding in found for answer in self._answers(finding, in_hand=False)]
        in_hand = [answer for finding in found for answer in self._answers(finding, in_hand=True)]
        unfetched.sort(key=lambda answer: not answer.answered)
        num_dropped = sum(finding.num_dropped for finding in found)
        return TakenRun(tenancy.run, self._meshes, unfetched, in_hand, num_dropped, self._problems)

    # ---- on the driver ----

    def _prepare(self, channel: FrameChannel) -> None:
        self._takes.prepare(channel, self._tenancy.kept_bytes, b"")

    def _adopt(self, number: int, findings: list[SurveyedProc]) -> None:
        tenancy = self._tenancy
        about = next((finding.about for finding in findings if finding.about), b"")
        if not about:
            name = f"procs{number_in_program(number)}"
            self._problems[name] = findings[0].problem or "its program was lost while the procs started: they are ended"
            hosts = sorted({finding.proc.host_rank for finding in findings})
            with contextlib.suppress(TransportError):
                tenancy.send(StopProcs(tenancy.run, number, hosts, 0.0))
            return
        plan, owner = cast(tuple[ProcPlan, MeshOwner | None], loads(about))
        procs = {finding.proc.rank: finding.proc for finding in findings if not finding.problem}
        for finding in findings:
            if finding.problem:
                self._note_dead(finding.proc, Death(DeathKind.UNKNOWN, finding.problem))
        procs = self._complete(number, plan, procs)
        for proc in procs.values():
            if proc.incarnation not in self._dead:
                tenancy.adopt(proc)
        table = tenancy.fleet.adopt(number, plan, owner, procs)
        if owner is None:
            name = plan.name or f"procs{number_in_program(number)}"
            region = region_of(plan.view)
            self._add(name, ProcMesh(plan.name, number, region, table, self._controller, owned=True))
        self._adopt_actors(procs, findings)

    def _complete(self, number: int, plan: ProcPlan, procs: dict[int, ProcRef]) -> dict[int, ProcRef]:
        """Add the dead procs of a mesh, so that calls to them say so."""
        for rank in range(len(plan.hosts) * plan.per_host):
            if rank not in procs:
                host = plan.hosts[rank // plan.per_host]
                name, allocation = self._host_name(host), self._tenancy.allocation
                procs[rank] = ProcRef(number, rank, name, host, 0, new_incarnation(), (), 0, allocation)
                self._note_dead(procs[rank], Death(DeathKind.UNKNOWN, _GONE))
        return procs

    def _host_name(self, host: int) -> str:
        entry = self._tenancy.hosts.get(host)
        return entry.name if entry is not None else f"host {host}"

    def _note_dead(self, proc: ProcRef, death: Death) -> None:
        self._dead[proc.incarnation] = death
        self._controller.node.bar(proc.incarnation, death.cause)
        self._controller.deaths.record(proc.incarnation, death)

    def _adopt_actors(self, procs: Mapping[int, ProcRef], findings: Iterable[SurveyedProc]) -> None:
        for made in find_actors(findings):
            if made.cls is None:
                self._problems[made.name] = made.problem
                continue
            placed = {place: procs[rank] for place, rank in enumerate(made.region.base_ranks())}
            self._controller.ownership.add(made.actor, 0, made.name, placed, class_name=made.class_name)
            for proc in placed.values():
                if proc.incarnation in self._dead:
                    self._controller.ownership.stop(made.actor, proc.incarnation)
            self._add(made.name, made.mesh(self._controller.incarnations, procs))

    def _add(self, name: str, mesh: ProcMesh | ActorMesh[Any]) -> None:
        self._meshes[free_name(name, self._meshes)] = mesh

    def _answers(self, finding: SurveyedProc, *, in_hand: bool) -> list[UnfetchedAnswer]:
        regions = {actor: region_of(view) for actor, _, view, _, _ in finding.actors}
        answers = []
        for caller, slot, actor, name, endpoint, answered, held in finding.calls:
            if held is not in_hand:
                continue
            region = regions.get(actor)
            rank = finding.proc.rank if region is None else region.rank_of(finding.proc.rank)
            engine = self._controller.engine
            answers.append(UnfetchedAnswer(engine, finding.proc, (caller, slot), name, endpoint, rank, answered))
        return answers
