"""Long campaigns on a Slurm lab of their own, as an ordinary user of it (needs root).

    python -m benchmarks.campaigns runs --count 3000       # whether an allocation wears out
    python -m benchmarks.campaigns clients --count 100     # kills of clients, and of all that is on the login host
    python -m benchmarks.campaigns places --count 40       # first lines of programs on the first host, and here
    python -m benchmarks.campaigns takeovers --count 100   # kills of programs under hold, and their successors
    python -m benchmarks.campaigns splits --count 6        # hosts in two parts, with the program in either
    python -m benchmarks.campaigns kills --count 200       # kills of commands at random moments
    python -m benchmarks.campaigns crowd --count 50        # commands at once, on two login hosts
    python -m benchmarks.campaigns full --count 50         # a full disk of records
    python -m benchmarks.campaigns silent --count 1 --minutes 5     # no slurmctld
    python -m benchmarks.campaigns calls --minutes 10      # requests to Slurm while a job waits, and by runs
    python -m benchmarks.campaigns tasks --count 64        # tasks of an array, two at a time, on two hosts
    python -m benchmarks.campaigns ends --count 10         # twice as many time limits, and preemptions and requeues

Each prints what it found and exits with 1 if a promise was not kept. Times are ratios to a floor that is measured in
turns with them, since a machine with other work on it changes from minute to minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.campaigns.allocations import calls, ends, runs, tasks
from benchmarks.campaigns.commands import crowd, full, kills, silent
from benchmarks.campaigns.programs import clients, places, takeovers
from benchmarks.campaigns.splits import splits
from benchmarks.campaigns.user import Verdict

__all__ = ["main"]

_CAMPAIGNS: dict[str, tuple[Callable[[argparse.Namespace, Verdict], None], int]] = {
    "runs": (runs, 3000),
    "clients": (clients, 100),
    "places": (places, 40),
    "takeovers": (takeovers, 100),
    "splits": (splits, 6),
    "kills": (kills, 200),
    "crowd": (crowd, 50),
    "full": (full, 50),
    "silent": (silent, 1),
    "calls": (calls, 100),
    "tasks": (tasks, 64),
    "ends": (ends, 10),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one campaign; 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=_CAMPAIGNS)
    parser.add_argument("--count", type=int, help="of runs, kills, commands, splits or tasks")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments: %(default)s")
    parser.add_argument("--minutes", type=float, default=None, help="that a job waits, 10; that slurmctld is dead, 5")
    options = parser.parse_args(argv)
    campaign, count = _CAMPAIGNS[options.campaign]
    options.count = options.count or count
    options.minutes = options.minutes or {"silent": 5.0}.get(options.campaign, 10.0)
    verdict = Verdict()
    begun_s = time.monotonic()
    campaign(options, verdict)
    took_s, load = time.monotonic() - begun_s, os.getloadavg()[0]
    print(f"{options.campaign} --count {options.count} --seed {options.seed}: {took_s:.0f} s, load {load:.1f}")
    return 0 if verdict.kept else 1


if __name__ == "__main__":
    sys.exit(main())
