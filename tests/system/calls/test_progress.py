"""Progress of calls on a terminal and in a file: how many have answered, for whom it waits; failures pass."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorError, ActorMesh, current_rank, endpoint
from monarch_hpc.core.shape import Extent
from monarch_hpc.mesh.calls.progress import render
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Worker(Actor):
    """Answers, fails, or waits for a file."""

    @endpoint
    def work(self, folder: Path) -> int:
        rank = current_rank().rank
        if rank == 2:
            raise ValueError("bad")
        if rank == 3:
            wait_until("the file", (folder / "go").exists, _PATIENCE_S)
        return rank


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def workers(shared_hosts: SharedHosts) -> Iterator[ActorMesh[Worker]]:
    with shared_hosts.controlled(1) as hosts, hosts.spawn_procs(per_host={"gpus": 4}) as procs:
        settle(procs)
        yield procs.spawn("worker", Worker)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["terminal", "file"])
def test_the_last_one_is_named_and_failures_pass(
    workers: ActorMesh[Worker], stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = stream()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("monarch_hpc.mesh.calls.progress._REDRAW_S", 0.0)
    progress = monarch_hpc.progress(workers.work.stream(tmp_path), "step")
    assert len(progress) == 4
    results, failures = [], 0
    while True:
        try:
            point, result = next(progress)
            results.append((point.rank, result))
        except StopIteration:
            break
        except ActorError:
            failures += 1
        if len(results) + failures == 3:
            (tmp_path / "go").touch()
    assert sorted(results) == [(0, 0), (1, 1), (3, 3)] and failures == 1
    text = shown.getvalue()
    assert text.count("step 4/4") == 1 and text.endswith("\n")
    if stream is Terminal:
        assert (
            text.startswith("\r[....................] step 0/4") and "; waits for {'hosts': 0/1, 'gpus': 3/4}" in text
        )
        assert "[####################]" in text
    else:
        assert len(text.splitlines()) == 2 and "\r" not in text
    html = workers._repr_html_()
    assert "ActorMesh worker of Worker" in html and html.count("<td>local0</td>") == 4


def test_a_line_says_how_many_how_fast_and_for_whom() -> None:
    point = Extent(("hosts",), (4,)).point(3)
    assert render("", 0, 64, 0.0, []) == "0/64 0.0/s, 0.0 s"
    assert render("step", 3, 4, 2.0, [point]) == "step 3/4 1.5/s, 2.0 s; waits for {'hosts': 3/4}"
