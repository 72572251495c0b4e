"""A headless Chromium, driven over pipes: the DevTools protocol without a port or another package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monarch_hpc.testing import wait_until
from tests.child import child

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 60.0


class Browser:
    """One page. All that it has asked for and complained about is kept.

    Attributes:
        requests: addresses of all requests; *complaints* texts of errors and warnings of its console.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(self) -> None:
        """Open an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        order: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._writer, json.dumps(order).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            message = self._read(until)
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            self._note(message)

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready = select.select([self._reader], [], [], max(until - time.monotonic(), 0))[0]
            assert ready, "the browser does not answer"
            piece = os.read(self._reader, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"][:200])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(found["exceptionDetails"]))
            case "Log.entryAdded" if found["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning"):
                self.complaints.append(str(found["args"]))

    def go(self, address: str) -> None:
        """Open an address in the page."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Wait until an expression is true; meanwhile it may fail, as in a page that is not complete."""
        safe = f"(() => {{ try {{ return {expression}; }} catch (error) {{ return false; }} }})()"
        return wait_until(expression, lambda: self.evaluate(safe), PATIENCE_S)

    def press(self, key: str, *, control: bool = False) -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" and not control else {}
        modifiers = 2 if control else 0
        code = codes.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **(text if kind == "keyDown" else {}),
            )

    def picture(self, path: Path) -> None:
        """Save a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile in *folder*."""
    assert PROGRAM is not None
    read_order, write_order = os.pipe()
    read_answer, write_answer = os.pipe()

    # The browser speaks on descriptors 3 and 4.
    launcher = f'exec "$0" "$@" 3<&{read_order} 4>&{write_answer}'
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    flags += [f"--user-data-dir={folder}", "--disable-background-networking", "--disable-component-update"]
    flags += [
        "--disable-dev-shm-usage",
        "--window-size=1280,1400",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ]
    process = subprocess.Popen(
        ["bash", "-c", launcher, PROGRAM, *flags, "about:blank"],
        pass_fds=(read_order, write_answer),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_order)
    os.close(write_answer)
    try:
        with child(process):
            browser = Browser(read_answer, write_order)
            browser.open()
            yield browser
            browser._session = ""
            with contextlib.suppress(AssertionError, OSError):
                browser.call("Browser.close")
            process.wait(PATIENCE_S)
    finally:
        os.close(read_answer)
        os.close(write_order)
