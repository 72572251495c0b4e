"""Text for Prometheus: its form, its labels, and what is left out of it."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from monarch_hpc.cli.dash.exposition import Scrape, render
from monarch_hpc.wire.tables.calls import EndpointCount, ProcCalls, Scene
from monarch_hpc.wire.tables.overview import HostRow
from monarch_hpc.wire.tables.samples import GpuSample, HostSample

HOSTILE = 'a"b\\c\nd{e="f"} 1\n# HELP \x1b[31m\udc80é'
SERIES = re.compile(r'monarch_hpc_([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\} (\S+)')


def count(name: str, endpoint: str, num_calls: int) -> EndpointCount:
    return EndpointCount(name, endpoint, num_calls, 1, 0.5, 0.2, [], 0.25, 0.1, [])


NOTHING = Scene("", "", [], [], [], [], 0, [])


def calls(pid: int, *counts: EndpointCount) -> ProcCalls:
    return ProcCalls("run", 0, 3, "n1", pid, "ready", "", replace(NOTHING, endpoints=[*counts]))


def sample(kind: type[Any], **given: object) -> Any:
    blank = {"str": "", "int": -1, "float": -1.0}
    kinds = {one.name: re.search(r"str|int|float", str(one.type)) for one in fields(kind)}
    return kind(**{name: blank[found[0]] for name, found in kinds.items() if found} | given)


def read(text: bytes) -> dict[tuple[str, str], float]:
    """Read the text as a collector does: by line, each series once, and each family in one block after its head."""
    found: dict[tuple[str, str], float] = {}
    family, ended = "", set()
    for line in text.decode().splitlines():
        if line.startswith("# HELP "):
            ended.add(family)
            family = line.split()[2]
            assert family not in ended
            continue
        if line.startswith("# TYPE "):
            assert line == f"# TYPE {family} {'counter' if family.endswith('_total') else 'gauge'}"
            continue
        matched = SERIES.fullmatch(line)
        assert matched is not None, line
        name, labels, value = matched.groups()
        assert f"monarch_hpc_{name}" == family and (name, labels) not in found
        found[name, labels] = float(value)
    return found


def test_counters_of_endpoints_by_process() -> None:
    text = render(
        [Scrape("dev", True, calls=[calls(7, count("trainer", "step", 10)), calls(8, count("t", "step", 2))])]
    )
    found = read(text)
    place = 'allocation="dev",run="run",mesh="0",rank="3",host="n1",pid="7",actor="trainer",endpoint="step"'
    assert found["endpoint_calls_total", place] == 10 and found["endpoint_failed_total", place] == 1
    assert found["endpoint_run_seconds_total", place] == 0.5 and found["endpoint_wait_seconds_total", place] == 0.25
    assert len([name for name, _ in found if name == "endpoint_calls_total"]) == 2
    assert text.endswith(b"\n") and found["up", 'allocation="dev"'] == 1


def test_series_that_would_be_there_twice_are_added() -> None:
    found = read(render([Scrape("dev", True, calls=[calls(7, count("t", "step", 10), count("t", "step", 5))])]))
    assert [value for (name, _), value in found.items() if name == "endpoint_calls_total"] == [15]


def test_hostile_names_stay_in_their_labels() -> None:
    scene = replace(NOTHING, endpoints=[count(HOSTILE, HOSTILE, 1)])
    one = ProcCalls(HOSTILE, 0, 0, HOSTILE, 1, "ready", HOSTILE, scene, 5, 0.5)
    text = render([Scrape(HOSTILE, True, calls=[one])])
    found = read(text)
    assert {name for name, _ in found} >= {"endpoint_calls_total", "proc_cpu_seconds_total", "procs"}
    assert b"\x1b" not in text and rb"a\"b\\c\\nd{e=\"f\"} 1\\n# HELP \\x1b[31m\\udc80" in text


def test_memory_and_cpu_of_processes_that_live() -> None:
    one = ProcCalls("run", 0, 1, "n1", 5, "ready", "", NOTHING, 4096, 1.5)
    gone = ProcCalls("run", 0, 2, "n1", 6, "ended", "killed", NOTHING, 0, 0.0)
    found = read(render([Scrape("dev", True, calls=[one, gone])]))
    memory = [(labels, value) for (name, labels), value in found.items() if name == "proc_resident_memory_bytes"]
    assert memory == [('allocation="dev",run="run",mesh="0",rank="1",host="n1",pid="5"', 4096)]
    states = {labels.rpartition("state=")[2]: value for (name, labels), value in found.items() if name == "procs"}
    assert states == {'"ready"': 1, '"ended"': 1}


def test_samples_without_what_is_unknown() -> None:
    host = sample(HostSample, host="n1", cpu_pct=50.0, free_bytes=7, oom_kills=0)
    gpu = sample(GpuSample, host="n1", gpu=0, uuid="GPU-1", model="H", power_w=300.0, clock_mhz=1000, throttle="x")
    row = HostRow("n1", 0, True, "alive", "", "", 4, 1, 1, 1, 0)
    found = read(render([Scrape("dev", True, 2, hosts=[row, row], host_samples=[host], gpu_samples=[gpu])]))
    values = {name: value for (name, _), value in found.items()}
    assert values == {
        "up": 1,
        "missing": 2,
        "hosts": 2,
        "host_cpu_busy_ratio": 0.5,
        "host_memory_available_bytes": 7,
        "host_oom_kills_total": 0,
        "gpu_power_watts": 300,
        "gpu_clock_hertz": 1e9,
        "gpu_throttled": 1,
    }
    assert ("gpu_power_watts", 'allocation="dev",host="n1",gpu="0",uuid="GPU-1",model="H"') in found


def test_an_allocation_that_does_not_answer() -> None:
    assert read(render([Scrape("dev", False), Scrape("b", True)])) == {
        ("up", 'allocation="dev"'): 0,
        ("up", 'allocation="b"'): 1,
        ("missing", 'allocation="b"'): 0,
    }
    assert render([]) == b""
