"""The dashboard in a browser: pixels of a killed rank, keys, dark and light, a prefix, a file, hostile texts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc.actor
from monarch_hpc import HostMesh
from monarch_hpc.cli.dash.document import chart_document, picture_document
from monarch_hpc.cli.dash.saved import saved_page
from monarch_hpc.cli.dash.server import PAGE
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.telemetry.views.series import MetricStore
from monarch_hpc.telemetry.views.sighting import ProcSeen, Sighting
from monarch_hpc.wire.tables.history import MetricRow
from monarch_hpc.wire.tables.procs import ProcRow
from tests.system.cli.test_dash import HOSTILE, Trainer, work
from tests.system.support.chromium import PROGRAM, Browser, browsing
from tests.system.support.controlling import controlled, settle
from tests.system.support.dashboard import PATIENCE_S, Dashboard, opened

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.slow,
]

PICTURES = os.environ.get("MONARCH_TEST_PICTURES", "")
"""A folder where the pictures of the pages are kept, for people to look at."""

COLOURS = """(() => {
  const grid = document.getElementById('grid'), found = new Set();
  const data = grid.getContext('2d').getImageData(0, 0, grid.width, grid.height).data;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join());
  return [...found];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def pids(hosts: HostMesh) -> Iterator[list[int]]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield work(procs)


@pytest.fixture(scope="module")
def dashboard(pids: list[int]) -> Iterator[Dashboard]:
    with opened("--port", "0") as dashboard:
        yield dashboard


class Forwarder(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Passes connections on, with a prefix taken from the path as proxies of sites do; one for each connection."""

    daemon_threads = True
    prefix = b"/user/me/proxy/8384/"

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarded)
        self.port = port


class _Forwarded(socketserver.StreamRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return
            head += line
        if self.server.prefix not in head.split(b"\r\n")[0]:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        head = head.replace(self.server.prefix, b"/", 1).replace(b"keep-alive", b"close")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE_S) as there:
            there.sendall(head + self.rfile.read(length))
            with contextlib.suppress(OSError):
                while piece := there.recv(1 << 16):
                    self.wfile.write(piece)


def look(browser: Browser, dashboard: Dashboard, address: str = "") -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.go(dashboard.url if not address else f"{address}#token={dashboard.token}")
    browser.wait_for(
        "document.querySelectorAll('#charts figure').length >= 2 && document.querySelectorAll('#calls tr').length >= 4"
    )


def keep(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.picture(Path(PICTURES) / f"{name}.png")


def state(browser: Browser) -> dict[str, Any]:
    found = browser.evaluate(
        "({url: location.href, title: document.title, scripts: document.scripts.length, text: document.body.innerText,"
        " cookie: document.cookie, counts: document.getElementById('counts').textContent})"
    )
    assert isinstance(found, dict)
    return found


def test_the_page_shows_the_run_and_runs_nothing_of_it(browser: Browser, dashboard: Dashboard) -> None:
    look(browser, dashboard)
    found = state(browser)
    assert (found["title"], found["scripts"], found["cookie"]) == ("monarch-hpc dash", 2, "")
    assert "token" not in found["url"] and found["counts"] == "5 processes on 3 hosts"
    assert "</script><script>document.title='owned'</script>" in found["text"] and "\x1b" not in found["text"]
    assert "loss by step" in found["text"] and "trainer[0].fail" in found["text"]
    origin = dashboard.url.partition("#")[0]
    assert browser.requests and all(one.startswith((origin, "data:", "about:")) for one in browser.requests)
    assert browser.complaints == []
    keep(browser, "light")


def test_the_cell_of_a_killed_rank_changes(
    browser: Browser, hosts: HostMesh, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", lambda failure: None)
    with hosts.slice(hosts=1).spawn_procs() as procs:
        settle(procs)
        (pid,) = (pid for _, pid in procs.spawn("victim", Trainer).step.call(0).get(PATIENCE_S).items())
        look(browser, dashboard)
        browser.wait_for("document.getElementById('counts').textContent.startsWith('6 ')")
        assert "43,43,43" not in browser.evaluate(COLOURS)
        os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        browser.wait_for(f"{COLOURS}.includes('43,43,43')")
        print(f"the cell changed {time.monotonic() - begun:.2f} s after the kill")
        assert [one for one in browser.complaints if "getImageData" not in one] == []  # this test's own calls
        with contextlib.suppress(Exception):
            procs.stop().get(PATIENCE_S)


def test_keys_are_enough(browser: Browser, dashboard: Dashboard) -> None:
    look(browser, dashboard)

    def tab_to(name: str) -> None:
        for _ in range(30):
            if browser.evaluate("document.activeElement.id") == name:
                return
            browser.press("Tab")
        raise AssertionError(f"the key Tab does not reach {name}")

    tab_to("grid")
    browser.press("ArrowRight")
    assert "program" in browser.evaluate("document.getElementById('chosen').textContent")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('chosen').textContent").startswith("rank 1 of run")
    browser.press("l")
    browser.wait_for("document.getElementById('text').textContent.includes('a line')")
    assert "\x1b" not in browser.evaluate("document.getElementById('text').textContent")
    browser.press("Tab")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "show-logs"
    for _ in range(5):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    assert "loss" in browser.evaluate("document.activeElement.getAttribute('aria-label')")
    browser.press("ArrowLeft")
    assert "step 1" in browser.evaluate("document.activeElement.parentElement.lastChild.textContent")
    tab_to("sql")
    browser.evaluate("document.getElementById('sql').value = 'SELECT nothing'")
    browser.press("Enter", control=True)
    browser.wait_for("document.getElementById('sql-status').textContent.includes('nothing')")
    assert [one for one in browser.complaints if "400" not in one] == []


def test_dark_and_light(browser: Browser, dashboard: Dashboard) -> None:
    look(browser, dashboard)
    for scheme, dark in (("dark", True), ("light", False)):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, paper[4:-1].split(","))) < 64) is dark
        idle = "75,88,102" if dark else "169,180,192"
        browser.wait_for(f"{COLOURS}.includes('{idle}')")
        keep(browser, scheme)


def test_behind_a_prefix(browser: Browser, dashboard: Dashboard) -> None:
    with Forwarder(int(str(dashboard.document["port"]))) as forwarder:
        serving = threading.Thread(target=forwarder.serve_forever, daemon=True)
        serving.start()
        try:
            prefix = f"http://localhost:{forwarder.server_address[1]}{Forwarder.prefix.decode()}"
            look(browser, dashboard, prefix)
            assert state(browser)["url"] == prefix
            assert all(one.startswith((prefix, "data:", "about:")) for one in browser.requests)
            assert browser.complaints == []
            browser.go("about:blank")
        finally:
            forwarder.shutdown()
            serving.join()


def test_a_wrong_token_is_told(browser: Browser, dashboard: Dashboard) -> None:
    browser.call("Network.clearBrowserCookies")
    browser.go(f"{dashboard.url.partition('#')[0]}#token=wrong")
    browser.wait_for("document.getElementById('status').textContent.startsWith('the token is wrong')")
    browser.go(dashboard.url.partition("#")[0])
    browser.wait_for("document.getElementById('status').textContent.startsWith('not connected: open')")


def test_a_saved_file_needs_no_server(browser: Browser, pids: list[int], tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--save", str(file)]) == 0
    browser.requests.clear()
    browser.complaints.clear()
    browser.go(file.as_uri())
    browser.wait_for("document.querySelectorAll('#charts figure').length >= 2")
    found = state(browser)
    assert found["title"] == "monarch-hpc dash" and found["counts"].endswith("processes on 3 hosts")
    assert HOSTILE.partition("\x1b")[0] in found["text"] and "\x1b" not in found["text"]
    assert {one.partition(":")[0] for one in browser.requests} <= {"file", "data", "about"}
    assert browser.complaints == []
    keep(browser, "saved")


def test_10_000_cells_and_2_000_lines(browser: Browser, tmp_path: Path) -> None:
    states = ["ready", "ready", "ready", "stopped", "ended"]
    rows = [ProcRow("run", 1, rank, f"n{rank // 8}", rank, states[rank % 5], "", 1, 0.0) for rank in range(10_000)]
    procs = [
        ProcSeen(
            ("dev", one.host, one.run, one.mesh, one.rank, one.pid),
            ("dev", one.host),
            lambda *_, one=one: (one, 0.5, ()),
            0,
        )
        for one in rows
    ]
    store = MetricStore()
    store.add(
        "dev",
        (
            MetricRow("run", 1, rank, "n", rank, 0.0, 0.0, 1, "a", rank, "loss", 1 / (step + 1) + rank % 7, step, "")
            for rank in range(2_000)
            for step in range(20)
        ),
    )
    history = {"charts": chart_document(store.charts()), "failures": []}
    page = saved_page(PAGE, {"picture": picture_document(Sighting(procs), 0.0), "history": history, "logs": {}})
    file = tmp_path / "large.html"
    file.write_text(page)
    browser.go(file.as_uri())
    browser.wait_for("document.getElementById('grid').dataset.cells === '10000'")
    times = browser.evaluate(
        "(() => { const grid = document.getElementById('grid'), found = []; grid.focus();"
        " for (let at = 0; at < 15; at++) {"
        "   window.dispatchEvent(new Event('resize')); found.push(Number(grid.dataset.ms)); }"
        " return found.sort((a, b) => a - b); })()"
    )
    print(f"10 000 cells: {times[len(times) // 2]} ms (median), {times[-1]} ms at most")
    assert times[0] <= 50
    assert "lowest, median and highest of 2000" in state(browser)["text"]
    assert browser.complaints == []
    keep(browser, "large")
