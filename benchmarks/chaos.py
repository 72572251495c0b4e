"""A campaign of random faults: each must be noticed, explained and survived, and no other process may suffer.

    python -m benchmarks.chaos --faults 1000             # embedded hosts, processes of this machine
    python -m benchmarks.chaos --faults 40 --lab         # four hosts with a Slurm, in namespaces (needs root)
    python -m benchmarks.chaos --faults 40 --seed 7      # the faults of an earlier campaign again

Each run of a program suffers some faults amid random traffic, whose history `monarch_hpc.testing.history` checks; the
last one may end its head, its host, its step or its job. Prints a line for each kind of fault, with the time from the
fault until calls under way end; then what was wrong. Exit code 1 if a goal was missed: no violation, no future without
an end, no process or job left, nobody else's death, 99 % of the causes right.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos_places import EMBEDDED, FAULTS, LAB, Broken, Fault, Place, open_embedded, open_lab

_CAUSES_RIGHT = 0.99


@dataclass
class _Line:
    """What came of one kind of fault.

    Attributes:
        took_s: from each fault until each call that it ended has ended.
        healed_s: from the end of the last of these calls until the procs answered again; of faults of the head, until
            another one has started a proc.
        wrong: kinds of death that do not say what happened, with their causes.
    """

    num: int = 0
    took_s: list[float] = field(default_factory=list)
    healed_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """The results of some runs.

    Attributes:
        violations: laws that were broken, with the run in which that happened.
        hung: number of futures and senders that did not end.
        left: processes and jobs that a run has left.
    """

    def __init__(self) -> None:
        self.lines: dict[str, _Line] = defaultdict(_Line)
        self.violations: list[str] = []
        self.left: list[str] = []
        self.hung = self.num_runs = self.num_messages = 0
        self._told: set[str] = set()

    def suffer(self, place: Place, faults: list[Fault], seed: int, dice: random.Random) -> None:
        """Let one run suffer some faults."""
        self.num_runs += 1
        where = f"run {self.num_runs}, seed {seed}"
        try:
            with place.run(seed) as run:
                for number, fault in enumerate(faults):
                    at = f"{where}, {', '.join(one.name for one in faults[max(0, number - 2) : number + 1])}"
                    ranks = fault.victims(dice)
                    self._add(fault, ranks, run.suffer(fault, ranks, fault.arguments(dice)), at)
                end = run.close()
        except Broken as error:
            # `run` ends a program whose allocation has ended, which may be before it has said what it got.
            if fault.ends_all and any(kind in str(error).lower() for kind in fault.kinds):
                self.lines[fault.name].num += 1
            else:
                self.violations.append(f"{at}: {error}")
        else:
            self.hung += end["hung"]
            self.num_messages += end["messages"]
            self.violations += [f"{where}: {text}" for text in end["violations"]]
        self.left += [f"{where}: {left}" for left in place.left()]

    def _add(self, fault: Fault, ranks: list[int], found: dict[str, Any], where: str) -> None:
        line = self.lines[fault.name]
        line.num += 1
        if "problem" in found:
            self.violations.append(f"{where}: {found['problem']}")
            return
        self.hung += found["hung"]
        line.took_s += found["took_s"]
        self.violations += [f"{where}: false death: {text}" for text in found["false_deaths"]]
        if found.get("wrong_lives"):
            self.violations.append(f"{where}: ranks {found['wrong_lives']} are not the lives that they should be")
        if (ranks or fault.ends_run) and "healed_s" in found:
            line.healed_s.append(found["healed_s"])
        for kind, cause in zip(found["kinds"], found["causes"], strict=True):
            if kind not in fault.kinds:
                line.wrong.append(f"{where}: {kind}: {cause}")

    def print(self) -> None:
        """Print the table, and what was wrong."""
        print(f"{'fault':22}{'runs':>6}{'ended':>7}{'p50 ms':>9}{'p99 ms':>9}{'healed p50 ms':>15}{'causes right':>14}")
        for name, line in sorted(self.lines.items()):
            ended, right = len(line.took_s), len(line.took_s) - len(line.wrong)
            cells = f"{name:22}{line.num:6}{ended:7}"
            cells += f"{_ms(line.took_s, 50):>9}{_ms(line.took_s, 99):>9}{_ms(line.healed_s, 50):>15}"
            print(cells + (f"{right:>8}/{ended}" if ended else ""))
        print(self.summary)
        for text in [*self.violations, *self.left, *(wrong for line in self.lines.values() for wrong in line.wrong)]:
            print(text)

    def print_news(self) -> None:
        """Print what has been wrong since the last call."""
        wrong = [*self.violations, *self.left]
        print("".join(f"  {text}\n" for text in wrong if text not in self._told), end="", file=sys.stderr, flush=True)
        self._told.update(wrong)

    @property
    def summary(self) -> str:
        """What was done and found so far, in a line."""
        num = sum(line.num for line in self.lines.values())
        return (
            f"{num} faults in {self.num_runs} runs, {self.num_messages} messages beside them:"
            f" {len(self.violations)} violations, {self.hung} hung, {len(self.left)} left behind,"
            f" {self.causes_right:.2%} of the causes right"
        )

    @property
    def causes_right(self) -> float:
        """Share of the deaths whose kind says what happened."""
        num = sum(len(line.took_s) for line in self.lines.values())
        return 1 - sum(len(line.wrong) for line in self.lines.values()) / num if num else 1.0

    @property
    def good(self) -> bool:
        """Whether all goals were reached."""
        return not (self.violations or self.left or self.hung) and self.causes_right >= _CAUSES_RIGHT


def _ms(times_s: list[float], percent: int) -> str:
    if not times_s:
        return "-"
    if percent == 50 or len(times_s) < 2:
        return f"{1e3 * statistics.median(times_s):.0f}"
    return f"{1e3 * statistics.quantiles(times_s, n=100, method='inclusive')[percent - 1]:.0f}"


def draw(
    num: int, kind: str, per_run: int, dice: random.Random, only: Collection[str] | None = None
) -> list[list[Fault]]:
    """Draw *num* faults, for runs that each end with what the allocation does not survive, or after *per_run*.

    Args:
        only: names of the faults to draw; None for all.
    """
    known = [fault for fault in FAULTS if kind in fault.where and (only is None or fault.name in only)]
    drawn: list[list[Fault]] = [[]]
    for fault in dice.choices(known, [one.weight for one in known], k=num):
        drawn[-1].append(fault)
        if fault.ends_run or len(drawn[-1]) == per_run:
            drawn.append([])
    return [faults for faults in drawn if faults]


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--per-run", type=int, default=25, metavar="N", help="faults of one run, at most: %(default)s")
    parser.add_argument("--only", nargs="+", choices=sorted(fault.name for fault in FAULTS), metavar="FAULT")
    parser.add_argument("--lab", action="store_true", help="on four hosts with a Slurm; needs root")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"--seed {seed}", flush=True)
    dice, campaign = random.Random(seed), Campaign()
    kind = LAB if arguments.lab else EMBEDDED
    runs = draw(arguments.faults, kind, arguments.per_run, dice, arguments.only)
    # Ctrl-C ends a long campaign with the results so far.
    try:
        with contextlib.suppress(KeyboardInterrupt), open_lab() if arguments.lab else open_embedded() as place:
            for number, faults in enumerate(runs):
                campaign.suffer(place, faults, dice.randrange(2**31), dice)
                print(f"run {number + 1} of {len(runs)}: {campaign.summary}", file=sys.stderr, flush=True)
                campaign.print_news()
    finally:  # also where a run could not begin
        campaign.print()
    return 0 if campaign.good else 1


if __name__ == "__main__":
    sys.exit(main())
