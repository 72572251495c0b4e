"""Samples of hosts, procs, network ports and GPUs, from recorded files and answers; then the questions about them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monarch_hpc import Actor, ActorMesh, current_rank, endpoint, telemetry
from monarch_hpc.attach.tables.rows import TableAnswer, query_rows
from monarch_hpc.attach.tables.sql_engine import open_engine
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.machine.procfs import each_pid, read_environ
from monarch_hpc.telemetry.scribe.sampling.gpus import NvidiaGpus, sample_amd
from monarch_hpc.telemetry.scribe.sampling.host import HostSampler, parse_busy, parse_stall
from monarch_hpc.telemetry.scribe.sampling.net import sample_ports
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace, sample_proc
from monarch_hpc.telemetry.sql.given import GivenRows
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE
from monarch_hpc.wire.tables.samples import SAMPLES
from tests.system.support.controlling import controlled, keep_channels, settle
from tests.system.support.recorded_nvml import RecordedNvml

_PATIENCE_S = 60.0

needs_sql = pytest.mark.skipif(
    importlib.util.find_spec("datafusion") is None, reason="needs datafusion: pip install 'monarch-hpc[telemetry]'"
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_proc_is_sampled_and_one_that_has_ended_is_not() -> None:
    own = ProcPlace("run", 1, 2, os.getpid())
    found = sample_proc(own, "n1", 5.0)
    assert found is not None and (found.run, found.mesh, found.rank, found.host, found.pid, found.t) == (
        *("run", 1, 2),
        *("n1", os.getpid(), 5.0),
    )
    assert found.rss_bytes > 1 << 20 and found.cpu_s > 0 and found.num_threads >= 1 and found.num_fds >= 3
    assert sample_proc(replace(own, pid=1 << 22), "n1", 5.0) is None


def test_the_load_of_a_host_is_that_since_the_last_sample(tmp_path: Path) -> None:
    proc = write(
        tmp_path,
        {
            "stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n",
            "meminfo": "MemTotal: 64 kB\nMemAvailable:       32 kB\n",
            "self/cgroup": "",
            "pressure/cpu": "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=0.00\n",
            "pressure/io": "",
        },
    )
    sampler = HostSampler("n1", lambda: 3, proc)
    first = sampler.sample(1.0)
    assert (first.cpu_pct, first.free_bytes, first.oom_kills) == (-1.0, 32 << 10, 3)
    assert (first.cpu_stall_pct, first.memory_stall_pct, first.io_stall_pct) == (12.5, -1.0, -1.0)
    assert first.tmp_free_bytes > 0
    write(tmp_path, {"stat": "cpu  150 0 125 725 100 0 0 0 0 0\n"})
    assert sampler.sample(2.0).cpu_pct == 75.0
    assert (parse_busy(""), parse_busy("cpu"), parse_stall(""), parse_stall("full x")) == ((0, 0), (0, 0), -1.0, -1.0)


IB = "class/infiniband/mlx5_0/ports/1"
PORTS = {
    f"{IB}/counters/port_xmit_data": "1000\n",
    f"{IB}/counters/port_rcv_data": "500\n",
    f"{IB}/counters/symbol_error": "7\n",
    f"{IB}/counters/link_downed": "1\n",
    f"{IB}/counters/port_xmit_wait": "12\n",
    f"{IB}/hw_counters/out_of_sequence": "4\n",
    f"{IB}/hw_counters/np_cnp_sent": "3\n",
    "class/infiniband/mlx5_0/ports/no port/counters/port_xmit_data": "1",
    "class/cxi/cxi0/device/telemetry/hni_sts_tx_ok_octets": "70@1700000000.5\n",
    "class/cxi/cxi0/device/telemetry/hni_pcs_uncorrected_cw": "2@1700000000.5\n",
    "class/cxi/cxi0/device/telemetry/pct_retry_srb_requests": "5@1700000000.5\n",
    "class/net/lo/statistics/tx_bytes": "1",
    "class/net/eth0/statistics/tx_bytes": "11\n",
    "class/net/eth0/statistics/rx_bytes": "22\n",
    "class/net/eth0/statistics/rx_errors": "3\n",
    "class/net/eth0/statistics/collisions": "not a number",
}


def test_ports_of_three_kinds_have_the_same_columns(tmp_path: Path) -> None:
    rows = [*sample_ports("n1", 1.0, write(tmp_path, PORTS))]
    assert [(row.device, row.port, row.kind, row.tx_bytes, row.rx_bytes) for row in rows] == [
        ("mlx5_0", 1, "infiniband", 4000, 2000),
        ("cxi0", 0, "slingshot", 70, 0),
        ("eth0", 0, "ethernet", 11, 22),
    ]
    assert [(row.errors, row.retransmits, row.congestion) for row in rows] == [(8, 4, 15), (2, 5, 0), (3, 0, 0)]
    assert [*sample_ports("n1", 1.0, tmp_path / "none")] == []


def test_gpus_of_the_grant_are_sampled_with_what_their_driver_answers() -> None:
    gpus = NvidiaGpus(RecordedNvml(), ["0", "GPU-1", "7", "MIG-x"])
    cool, hot = gpus.sample("n1", 1.0, {7, 8}, watched=False)
    assert (cool.gpu, cool.uuid, cool.model, cool.pid) == (0, "GPU-0", "NVIDIA H100 80GB HBM3", 0)
    assert (cool.busy_pct, cool.power_w, cool.throttle, cool.nvlink_tx_bytes) == (-1.0, 70.5, "", -1)
    assert (hot.uuid, hot.pid, hot.busy_pct, hot.used_bytes, hot.total_bytes) == ("GPU-1", 8, 96.0, 5 << 30, 80 << 30)
    assert (hot.temperature_c, hot.clock_mhz, hot.max_clock_mhz) == (91.0, 900, 1980)
    assert (hot.throttle, hot.ecc_errors, hot.xid) == ("hw_slowdown,hw_thermal", 2, 79)
    assert (hot.nvlink_tx_bytes, hot.nvlink_rx_bytes) == (138 << 10, 139 << 10)
    assert next(iter([*gpus.sample("n1", 2.0, set(), watched=False)][1:])).xid == 0  # each error is reported once


def test_gpus_of_amd_are_those_of_the_grant(tmp_path: Path) -> None:
    card = "class/drm/card{}/device"
    files = {
        f"{card.format(0)}/vendor": "0x1a03\n",  # a console's adapter
        f"{card.format(1)}/vendor": "0x1002\n",
        f"{card.format(10)}/vendor": "0x1002\n",
        f"{card.format(10)}/unique_id": "abc\n",
        f"{card.format(10)}/gpu_busy_percent": "55\n",
        f"{card.format(10)}/mem_info_vram_used": "100\n",
        f"{card.format(10)}/mem_info_vram_total": "200\n",
        f"{card.format(10)}/pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *\n2: 2100Mhz\n",
        f"{card.format(10)}/hwmon/hwmon3/power1_average": "250000000\n",
        f"{card.format(10)}/hwmon/hwmon3/temp1_input": "61000\n",
        "class/drm/card10-DP-1/device/vendor": "0x1002\n",
    }
    (row,) = sample_amd("n1", 1.0, ["1"], write(tmp_path, files))
    assert (row.gpu, row.uuid, row.busy_pct, row.used_bytes, row.total_bytes) == (1, "abc", 55.0, 100, 200)
    assert (row.power_w, row.temperature_c, row.clock_mhz, row.max_clock_mhz) == (250.0, 61.0, 1700, 2100)
    (bare,) = sample_amd("n1", 1.0, ["0"], tmp_path)
    assert (bare.busy_pct, bare.power_w, bare.clock_mhz, bare.throttle) == (-1.0, -1.0, -1, "")


def ask_about(question: str, name: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The answer to a question that ships, about the rows of one table."""
    with open_engine(telemetry.question(question), _PATIENCE_S) as engine:
        given = GivenRows(engine.plan(), {name: json.loads(SAMPLES[name].render(rows, {}))})
        found = engine.finish(given, "json", _PATIENCE_S)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows if isinstance(row, list)]


@needs_sql
def test_a_link_with_errors_and_a_throttled_gpu_are_found(tmp_path: Path) -> None:
    before = [*sample_ports("n1", 1.0, write(tmp_path, PORTS))]
    write(tmp_path, {f"{IB}/counters/symbol_error": "9", "class/net/eth0/statistics/tx_bytes": "99"})
    (link,) = ask_about("link-errors", "net_samples", [*before, *sample_ports("n1", 11.0, tmp_path)])
    assert (link["host"], link["device"], link["errors"], link["retransmits"], link["seconds"]) == (
        *("n1", "mlx5_0"),
        *(2, 0, 10.0),
    )
    gpus = NvidiaGpus(RecordedNvml(), ["0", "1"])
    rows = [row for t in (1.0, 2.0) for row in gpus.sample("n1", t, set(), watched=False)]
    (gpu,) = ask_about("gpu-throttle", "gpu_samples", rows)
    assert (gpu["gpu"], gpu["samples"], gpu["throttled"], gpu["why"]) == (1, 2, 2, "hw_slowdown,hw_thermal")
    assert (gpu["hottest_c"], gpu["least_mhz"], gpu["max_mhz"], gpu["xid"]) == (91.0, 900, 1980, 79)


class Grower(Actor):
    """Has a rank whose memory grows."""

    @endpoint
    def grow(self) -> None:
        self.data: list[bytes]
        if current_rank().rank == 1:
            self.data = [*getattr(self, "data", []), b"x" * (4 << 20)]

    @endpoint
    def allocation(self) -> str:
        return os.environ[COOKIE]


@pytest.fixture(scope="module")
def growers() -> Iterator[ActorMesh[Grower]]:
    loaded = load().config
    with (
        controlled(replace(loaded, telemetry=replace(loaded.telemetry, sample_s=0.1)), 2) as hosts,
        hosts.spawn_procs(per_host={"gpus": 2}) as procs,
    ):
        settle(procs)
        keep_channels()
        yield procs.spawn("grower", Grower)


def look(table: str) -> TableAnswer[Any]:
    found = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), SAMPLES[table], _PATIENCE_S, {})
    assert found is not None
    return found


def helpers(allocation: str) -> set[int]:
    mark = f"{COOKIE}={allocation}".encode()
    return {
        pid
        for pid in each_pid()
        if mark in (read_environ(pid) or b"").split(b"\0")
        and b"monarch_hpc.telemetry.scribe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


@needs_sql
def test_the_proc_whose_memory_grows_is_found(growers: ActorMesh[Grower]) -> None:
    def grown() -> bool:
        growers.grow.call().get(_PATIENCE_S)
        sizes = [row.rss_bytes for row in look("proc_samples").rows if row.rank == 1]
        return len(sizes) > 1 and max(sizes) > min(sizes) + (8 << 20)

    wait_until("samples of the proc that grows", grown, _PATIENCE_S)
    answer = telemetry.query(telemetry.question("memory-growth"), timeout_s=_PATIENCE_S)
    assert answer.missing_hosts == []
    found: list[dict[str, Any]] = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    rows = [row for row in found if row["mesh"] >= 0]  # without the program
    assert (len(rows), rows[0]["rank"], rows[0]["host"]) == (4, 1, "local0") and rows[0]["mb_per_s"] > 0
    assert {row.host for row in look("host_samples").rows if row.cpu_pct >= 0} == {"local0", "local1"}


def test_a_helper_that_dies_is_started_once_more_and_nobody_else_notices(growers: ActorMesh[Grower]) -> None:
    allocation = growers.slice(hosts=0, gpus=0).allocation.call_one().get(_PATIENCE_S)
    for life in (1, 2):
        answer = look("host_samples")
        assert ({row.host for row in answer.rows}, answer.missing) == ({"local0", "local1"}, [])
        first = wait_until("the helpers", lambda: helpers(allocation), _PATIENCE_S, accept=lambda some: len(some) == 2)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        growers.grow.call().get(_PATIENCE_S)
        wait_until("their end", lambda: not helpers(allocation) & first, _PATIENCE_S)  # noqa: B023 awaited here
        assert life == 2 or len(wait_until("the next", lambda: helpers(allocation), _PATIENCE_S)) <= 2
    answer = look("host_samples")
    assert (answer.rows, sorted(answer.missing)) == ([], ["host local0", "host local1"])
    assert helpers(allocation) == set()
