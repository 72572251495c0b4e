"""Fuzzes all parsers of other processes' bytes: each must return a value or raise a documented error.

    python -m benchmarks.fuzz_frames --minutes 10            # all targets, in turn
    python -m benchmarks.fuzz_frames --minutes 10 --save     # and save inputs with new outcomes in tests/corpus/
    python -m benchmarks.fuzz_frames --inputs 2000 --seed 1  # this many per target, the same ones each time
    python -m benchmarks.fuzz_frames --replay FILE           # one input again; its folder names the target

An input that breaks this rule is shrunk and written to `--crashes`. Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"

_MAX_INPUT_S = 2.0  # CPU time; the slowest inputs take some milliseconds
_MAX_MEMORY_BYTES = 2**30  # more than this process uses, less than a forged length
_SLICE_S = 2.0
_MAX_KEPT = 500
_MAX_SAVED_BYTES = 4096
_MAX_SHRINK_S = 20.0


class Hang(BaseException):
    """An input took too long. Not an `Exception`, which code under test may catch."""


@dataclass
class Campaign:
    """One target, with inputs that had different outcomes."""

    target: Target
    dice: random.Random
    mutator: Mutator = field(init=False)
    inputs: list[bytes] = field(default_factory=list)
    ends: set[str] = field(default_factory=set)
    num_inputs: int = 0
    took_s: float = 0.0
    slowest_s: float = 0.0
    broken: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mutator = Mutator(self.dice)
        kept = sorted((CORPUS / self.target.name).glob("*.bin"))
        for data in [*self.target.seeds(), *(path.read_bytes() for path in kept)]:
            self.inputs.append(data)
            self.feed(data)

    def step(self) -> bytes | None:
        """Try one more input; return it if its outcome is new."""
        data = self.mutator.mutate(self.dice.choice(self.inputs), self.inputs)
        if self.feed(data) and len(self.inputs) < _MAX_KEPT:
            self.inputs.append(data)
            return data
        return None

    def feed(self, data: bytes) -> bool:
        """Feed one input to the target; return whether its outcome is new."""
        self.num_inputs += 1
        begun_s = time.process_time()
        problem, end = _judge(self.target, data)
        self.slowest_s = max(self.slowest_s, time.process_time() - begun_s)
        if problem and problem not in self.broken:
            self.broken[problem] = data
        new = end not in self.ends
        self.ends.add(end)
        return new and not problem


def _judge(target: Target, data: bytes) -> tuple[str, str]:
    """Return the problem with an input, or "", and the kind of its outcome."""
    signal.setitimer(signal.ITIMER_PROF, _MAX_INPUT_S)
    try:
        end = target.check(data)
    except Hang:
        return f"took more than {_MAX_INPUT_S} s", "hang"
    except Exception as error:  # noqa: BLE001 any is a finding
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = traceback.extract_tb(error.__traceback__)
        return f"{type(error).__name__} in {frames[-1].name}:{frames[-1].lineno}: {error!s:.200}", "broken"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "", re.sub(r"'[^']*'|\"[^\"]*\"|\[[^]]*\]|\d+", "#", end)[:60]


def _shrink(target: Target, data: bytes) -> bytes:
    """Return the smallest input found that fails in the same place."""

    def place(problem: str) -> str:
        return problem.partition(": ")[0]

    known = place(_judge(target, data)[0])
    if not known:
        return data  # the failure does not happen each time
    end_s = time.monotonic() + _MAX_SHRINK_S
    size = max(len(data) // 2, 1)
    while size and time.monotonic() < end_s:
        at = 0
        while at < len(data) and time.monotonic() < end_s:
            shorter = data[:at] + data[at + size :]
            if place(_judge(target, shorter)[0]) == known:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _write(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


def _run(campaigns: list[Campaign], minutes: float | None, num_inputs: int, save: bool) -> None:
    """Give each target the same time, in slices by turns, or the same number of inputs."""
    end_s = None if minutes is None else time.monotonic() + 60 * minutes
    while end_s is None or time.monotonic() < end_s:
        for campaign in campaigns:
            begun_s = time.monotonic()
            slice_inputs = 0
            while slice_inputs < num_inputs if end_s is None else time.monotonic() < begun_s + _SLICE_S:
                slice_inputs += 1
                fresh = campaign.step()
                if fresh is not None and save and len(fresh) <= _MAX_SAVED_BYTES:
                    _write(CORPUS / campaign.target.name, fresh)
            campaign.took_s += time.monotonic() - begun_s
        if end_s is None:
            return


def main() -> int:
    """Fuzz, and print the results."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="for all targets together")
    parser.add_argument("--inputs", type=int, default=2000, help="for each target, if --minutes is not given")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--target", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--save", action="store_true", help="save inputs with new outcomes")
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"), help="folder for findings")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPROF, _late)
    if arguments.replay:
        (target,) = (target for target in TARGETS if target.name == arguments.replay.parent.name)
        print(target.check(arguments.replay.read_bytes()))
        return 0
    # Code that believes a forged length fails at once, instead of taking the machine's memory.
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + _MAX_MEMORY_BYTES, resource.RLIM_INFINITY))
    print(f"seed {arguments.seed}", flush=True)
    chosen = [target for target in TARGETS if not arguments.target or target.name in arguments.target]
    campaigns = [Campaign(target, random.Random(f"{arguments.seed} {target.name}")) for target in chosen]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _run(campaigns, arguments.minutes, arguments.inputs, arguments.save)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    for campaign in campaigns:
        rate = campaign.num_inputs / campaign.took_s
        print(
            f"{campaign.target.name:10}{campaign.num_inputs:10} inputs  {rate:8.0f}/s  "
            f"{len(campaign.ends):4} ends  slowest {1e3 * campaign.slowest_s:6.1f} ms  {len(campaign.broken)} broken"
        )
    print(f"{sum(campaign.num_inputs for campaign in campaigns)} inputs; memory grew by {grown_kib} KiB")
    for campaign in campaigns:
        for problem, data in campaign.broken.items():
            path = _write(arguments.crashes / campaign.target.name, _shrink(campaign.target, data))
            print(f"{campaign.target.name}: {problem}\n    {path}: {path.read_bytes()[:64].hex()}")
    return any(campaign.broken for campaign in campaigns)


if __name__ == "__main__":
    sys.exit(main())
