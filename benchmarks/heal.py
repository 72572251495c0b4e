"""Kills ranks of a training at points drawn from seeds, and compares what comes out with an undisturbed run.

    python -m benchmarks.heal --seeds 300              # one line a seed, and a summary
    python -m benchmarks.heal --seeds 8 --first 100
    python -m benchmarks.heal --seeds 20 --captured    # steps are captured
    python -m benchmarks.heal --seeds 20 --modes shrink   # dead ranks are left out
    python -m benchmarks.heal --seeds 20 --modes grow     # and come back after a step
    python -m benchmarks.heal --seeds 20 --modes on-loss  # the mesh heals by itself, and the program catches nothing
    python -m benchmarks.heal --seeds 2 --modes respawn on-loss shrink --steps 4  # two runs in each mode, of four steps
    python -m benchmarks.heal --seeds 20 --no-barrier  # without the barrier of commits: ends torn, or wrong

A 2 x 2 mesh (data x tensor parallel) trains a small network with dropout, batch norm, clipping, AdamW and a schedule.
In each proc an actor replaces methods of the worker by ones that kill, stop or fail the rank there the n-th time: in a
step, in a heal, in a replacement. All losses, parameters, buffers and moments must then be bit-equal, or the mesh must
say what is lost; with fewer ranks they must be within 1e-5. All runs share one mesh, unless it is lost or has become
smaller. Each line says how many of the faults of its plan happened: a run without any is counted as ``unharmed``, and
shows nothing. The exit code is 1 if a run is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch

from benchmarks.grid_training import GridTraining
from monarch_hpc import Actor, HostMesh, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE, RUN_VARIABLE
from monarch_hpc.distributed import Mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.mesh.current import hosts as own_hosts
from monarch_hpc.tensor.sharded.procs import PRELOADED

STEP_POINTS = ("frame", "backward", "gradient", "enter", "update", "operation", "passed", "committed", "reply")
HEAL_POINTS = ("status", "roll", "held", "meet", "restore", "_exchange")
_NUM_RANKS = 4
_CLOSE = 1e-5

Mode = Literal["respawn", "shrink", "grow", "on-loss"]
"""Fates of dead ranks: the program has them started again, or left out, for good or until a step was done without them,
or the mesh does the first by itself."""


class Saboteur(Actor):
    """Makes its rank die where the plan says.

    Args:
        path: the plan: a file of JSON, with ``[rank, life, point, nth, action]`` each.
        barrier: whether commits have their barrier.
    """

    def __init__(self, path: str, *, barrier: bool) -> None:
        self._path = Path(path)
        self._counts: dict[str, int] = {}
        self._plan: list[Any] = []
        self._patch(barrier=barrier)
        self.arm()

    @endpoint
    def rearm(self) -> None:
        """Read the plan, and count from here on."""
        self.arm()

    def arm(self) -> None:
        """See `rearm`."""
        self._counts.clear()
        known = json.loads(self._path.read_text())
        proc = current_runtime().own
        life = proc.restarts - known["restarts"][proc.rank]
        self._plan = [one[2:] for one in known["plan"] if one[:2] == [proc.rank, life]]

    def _at(self, point: str) -> None:
        num = self._counts[point] = self._counts.get(point, 0) + 1
        for at, nth, action in self._plan:
            if (at, nth) == (point, num):
                with self._path.with_suffix(".reached").open("a") as reached:
                    reached.write(f"{at}\n")
                if action == "fail":
                    raise RuntimeError("gloo: a failure that was asked for")
                self._path.with_suffix(".killed").write_text(f"{action} {time.time()}")
                os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    def _patch(self, *, barrier: bool) -> None:
        from monarch_hpc.tensor.worker import gradients
        from monarch_hpc.tensor.worker.actor import TensorWorker
        from monarch_hpc.tensor.worker.collectives.groups import Groups
        from monarch_hpc.tensor.worker.healing.journal import Journal
        from monarch_hpc.tensor.worker.healing.rank import RankHealing
        from monarch_hpc.tensor.worker.values import Values

        self._wrap(TensorWorker, "_run", before="frame")
        self._wrap(TensorWorker, "_reply", before="reply")
        self._wrap(gradients, "backward", before="backward")
        self._wrap(gradients, "get_grad", before="gradient")
        self._wrap(Groups, "agree", before="enter", after="agreed")
        self._wrap(Journal, "update", before="update")
        self._wrap(Values, "free", before="operation")  # in an update, too
        self._wrap(Journal, "pass_on", before="passed", after="committed")
        for name in HEAL_POINTS:
            self._wrap(RankHealing, name, before=name)
        if not barrier:
            RankHealing._meet = _meet_nobody  # type: ignore[method-assign]

    def _wrap(self, cls: Any, name: str, before: str = "", after: str = "") -> None:
        original: Callable[..., Any] = getattr(cls, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                self._at(before)
            found = original(*args, **kwargs)
            if after:
                self._at(after)
            return found

        setattr(cls, name, wrapped)


def _meet_nobody(self: Any, version: int, mark: int, update: Any = None, *, ready: bool = True) -> bool:
    """Take a commit as done without the others."""
    if ready:
        self.journal.prepare(version, mark, update)
    return ready


def draw(seed: int, num_steps: int) -> list[list[Any]]:
    """The plan of a seed, for a training of so many steps."""
    rnd = random.Random(seed)
    plan: list[list[Any]] = []
    victim = rnd.randrange(_NUM_RANKS)
    per_step = {"frame": 6, "gradient": 6, "operation": 6}
    point = _reached_by(victim, rnd.choice(STEP_POINTS))
    nth = rnd.randrange(2 * per_step.get(point, 1), (num_steps - 1) * per_step.get(point, 1))
    kind = rnd.random()
    if kind < 0.12:
        plan.append([victim, 0, "agreed", nth % num_steps + 2, "fail"])
    else:
        plan.append([victim, 0, point, nth, "stop" if kind < 0.2 else "kill"])
    second = rnd.random()
    other = (victim + rnd.choice([1, 3])) % _NUM_RANKS  # not the one with the same parts
    if second < 0.3:
        plan.append([other, 0, rnd.choice(HEAL_POINTS), 1, "kill"])
    elif second < 0.55:
        again = rnd.choice([*HEAL_POINTS[3:], *STEP_POINTS])
        plan.append([victim, 1, _reached_by(victim, again), 1, "kill"])
    elif second < 0.65:
        plan.append([other, 0, _reached_by(other, point), nth, "kill"])
    elif second < 0.7:
        other = (victim + 2) % _NUM_RANKS  # both that have a part
        plan.append([other, 0, _reached_by(other, point), nth, "kill"])
    return plan


def draw_growth(seed: int, num_steps: int) -> list[list[Any]]:
    """Likewise, with one death, and perhaps one of a rank that comes back, while it does."""
    rnd = random.Random(seed)
    victim = rnd.randrange(_NUM_RANKS)
    points = ("frame", "backward", "enter", "passed", "committed")
    plan: list[list[Any]] = [[victim, 0, rnd.choice(points), rnd.randrange(2, num_steps - 1), "kill"]]
    second = rnd.random()
    if second < 0.4:
        plan.append([victim, 1, rnd.choice(HEAL_POINTS[3:]), 1, "kill"])
    elif second < 0.7:
        plan.append([victim ^ 1, 0, rnd.choice(HEAL_POINTS[3:]), 2, "kill"])  # in its row; the first one was to shrink
    return plan


def _reached_by(rank: int, point: str) -> str:
    """*point*, or another one that comes as often, if a rank never comes to it: all values are read from rank 0."""
    return "backward" if point == "reply" and rank else point


class Training(GridTraining):
    """One training; the program follows the version of the mesh where repeating the batch would not be exact."""

    def __init__(self, mesh: Mesh, num_steps: int, *, captured: bool) -> None:
        super().__init__(mesh, num_steps, captured=captured)
        self.begun = mesh.version
        self.losses: dict[int, float] = {}
        self.heals_s: list[float] = []
        self.detected_s: dict[str, list[float]] = {"kill": [], "stop": []}
        self.steps_s: list[float] = []
        self.first_steps_s: list[float] = []
        self.num_rewinds = 0

    def run(self, killed: Path, mode: Mode) -> None:
        """All steps.

        Args:
            killed: the file that says how a rank was killed, or stopped, and when.
            mode: see `Mode`.

        Raises:
            DeviceMeshError: the mesh is lost.
        """
        at, is_healed = 0, False
        while True:
            try:
                while at < len(self.batches):
                    if mode == "grow" and self.mesh.size() < _NUM_RANKS and not is_healed:
                        self.mesh.grow()
                    begun_s = time.perf_counter()
                    self.losses[at] = self.step(*self.batches[at])
                    (self.first_steps_s if is_healed else self.steps_s).append(time.perf_counter() - begun_s)
                    at, is_healed = at + 1, False
                self.found = self.state()
                return
            except DeviceMeshError:
                if mode == "on-loss":
                    raise
                if killed.exists():
                    action, at_s = killed.read_text().split()
                    self.detected_s[action].append(time.time() - float(at_s))
                    killed.unlink()
            begun_s = time.perf_counter()
            policy = "shrink" if mode == "grow" else mode
            try:
                self.mesh.heal(policy)
            except DeviceMeshError as error:
                if error.version < 0:
                    raise
                self.mesh.heal(policy, rewind=True)
                self.num_rewinds += 1
            self.heals_s.append(time.perf_counter() - begun_s)
            is_healed = True
            killed.unlink(missing_ok=True)  # within the heal, which has seen it
            at = self.mesh.version - self.begun


class Campaign:
    """Runs on one mesh after the other."""

    def __init__(self, hosts: HostMesh, folder: Path, num_steps: int, *, barrier: bool, captured: bool) -> None:
        self._hosts = hosts
        self._path = folder / "plan"
        self._reached = self._path.with_suffix(".reached")
        self._num_steps = num_steps
        self._barrier = barrier
        self._captured = captured
        self._heals_by_itself = False
        self.mesh: Mesh | None = None

    def run(self, plan: list[list[Any]], mode: Mode) -> Training:
        """One run."""
        if self._heals_by_itself and mode != "on-loss":
            self.give_up()
        if self.mesh is None:
            self._write([], [0] * _NUM_RANKS)
            procs = self._hosts.slice(hosts=0).spawn_procs({"dp": 2, "tp": 2}, preload=PRELOADED)
            self._saboteurs = procs.spawn("saboteur", Saboteur, str(self._path), barrier=self._barrier)
            self.mesh = Mesh(procs=procs)
        if mode == "on-loss" and not self._heals_by_itself:
            self.mesh = Mesh(procs=self.mesh.procs, on_loss="heal")
            self._heals_by_itself = True
        training = Training(self.mesh, self._num_steps, captured=self._captured)
        self._write(plan, [proc.restarts for proc in self.mesh.procs.procs])
        self._reached.unlink(missing_ok=True)
        self._saboteurs.rearm.call().get()
        training.run(self._path.with_suffix(".killed"), mode)
        if self.mesh.size() < _NUM_RANKS:
            self.give_up()
        return training

    def num_reached(self) -> int:
        """The number of faults that have happened in the last run."""
        return len(self._reached.read_text().splitlines()) if self._reached.exists() else 0

    def give_up(self) -> None:
        """End a mesh that is lost."""
        if self.mesh is not None:
            self.mesh.stop()
        self.mesh, self._heals_by_itself = None, False

    def _write(self, plan: list[list[Any]], restarts: list[int]) -> None:
        self._path.with_suffix(".new").write_text(json.dumps({"plan": plan, "restarts": restarts}))
        self._path.with_suffix(".new").replace(self._path)


def are_equal(one: Training, other: Training, is_smaller: bool) -> bool:
    """Whether losses and states are equal: bit by bit, or, if ranks were left out, but for the order of sums."""
    losses = [torch.tensor([loss for _, loss in sorted(training.losses.items())]) for training in (one, other)]
    pairs = zip((losses[0], *one.found), (losses[1], *other.found), strict=True)
    if is_smaller:
        return all(torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE) for a, b in pairs)
    return all(torch.equal(a, b) for a, b in pairs)


def measure(campaign: Campaign, runs: list[tuple[Mode, int, list[list[Any]]]]) -> int:
    """All runs, of which each has a mode, a seed and its plan; the number of wrong ones."""
    expected = campaign.run([], "respawn")
    counts = {"equal": 0, "unharmed": 0, "lost": 0, "wrong": 0}
    heals_s: list[float] = []
    detected_s: dict[str, list[float]] = {"kill": [], "stop": []}
    first_steps_s: list[float] = []
    steps_s: list[float] = []
    num_rewinds = 0
    for mode, seed, plan in runs:
        begun_s = time.perf_counter()
        try:
            training = campaign.run(plan, mode)
        except DeviceMeshError as error:
            both = {one[0] % 2 for one in plan if one[1] == 0}
            expects_loss = len(plan) > 1 and len(both) == 1 and plan[0][0] != plan[1][0]
            has_no_row = mode == "shrink" and "no row is without a dead rank" in error.cause
            outcome = "lost" if has_no_row or (error.kind == "lost" and expects_loss) else "wrong"
            detail = f"{error.kind}: {error.cause}"
            campaign.give_up()
        else:
            is_equal = are_equal(training, expected, mode in ("shrink", "grow"))
            outcome = "wrong" if not is_equal else "equal" if campaign.num_reached() else "unharmed"
            detail = " ".join(f"{one:.2f}" for one in training.heals_s)
            heals_s += training.heals_s
            for action, found_s in training.detected_s.items():
                detected_s[action] += found_s
            first_steps_s += training.first_steps_s
            steps_s += training.steps_s
            num_rewinds += training.num_rewinds
        counts[outcome] += 1
        reached = f"{campaign.num_reached()} of {len(plan)} faults"
        took_s = time.perf_counter() - begun_s
        print(f"{seed:6} {mode:7} {outcome:8} {took_s:6.1f} s  {reached}  {plan}  {detail}", flush=True)
    print(counts, f"{len(heals_s)} heals, {num_rewinds} of them to a version that the program followed")
    measured = {
        "heal": heals_s,
        "kill to error": detected_s["kill"],
        "stop to error": detected_s["stop"],  # a stopped rank is not dead before `liveness.dead_s`
        "first step after a heal": first_steps_s,
        "step": steps_s,
    }
    for name, found in measured.items():
        if len(found) > 1:
            tenths = statistics.quantiles(found, n=100)
            print(f"{name}: p50 {tenths[49]:.3f} s, p90 {tenths[89]:.3f} s, p99 {tenths[98]:.3f} s")
    return counts["wrong"]


def main() -> NoReturn:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--modes", default=["respawn"], nargs="+", choices=get_args(Mode))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--no-barrier", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("MONARCH_HPC_TENSOR__HEALS_AN_HOUR", "100000")
    with tempfile.TemporaryDirectory() as folder, open_local(1, load({}).config) as directory:
        os.environ[DIRECTORY_VARIABLE], os.environ[RUN_VARIABLE] = str(directory), "feedbeef"
        own = own_hosts()
        campaign = Campaign(own, Path(folder), options.steps, barrier=not options.no_barrier, captured=options.captured)
        seeds = range(options.first, options.first + options.seeds)
        draws = {"grow": draw_growth}
        runs = [(mode, seed, draws.get(mode, draw)(seed, options.steps)) for mode in options.modes for seed in seeds]
        num_wrong = measure(campaign, runs)
        campaign.give_up()
    sys.stdout.flush()
    os._exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
