"""`monarch-hpc dash`: serves a page that shows runs as they work, or saves it."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.dash.access import PageAccess
from monarch_hpc.cli.dash.saved import saved_page
from monarch_hpc.cli.dash.server import PAGE, DashServer, open_loopback, open_socket
from monarch_hpc.cli.dash.watch import Watch
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import output_file, seconds
from monarch_hpc.cli.output import Console, current_output, output_options
from monarch_hpc.cli.tables.absence import refuse_absent
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import NEW_FILE, read_private, write_once, write_private

__all__ = ["command"]

_BROWSER_PORT = 8384
"""The port on the user's own machine in the printed line; any other does as well."""

_ONCE_S = 0.5
"""Time between the two pictures of ``--save``, from which the use of CPUs comes."""

_PAGE_EVERY_S, _TEXTFILE_EVERY_S = 1, 15
"""Time between two pictures: a person waits for the next one; collectors read a file every 15 to 60 s."""

_MIN_TOKEN_CHARS, _MAX_TOKEN_BYTES = 16, 1024

_MAX_SAVED_LOGS = 64
_MAX_SAVED_CHARS = 2 << 20


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--port", type=click.IntRange(0, 65535), help="Serve on this port of 127.0.0.1; 0 for a free one.")
@click.option("--socket", "place", type=click.Path(path_type=Path), help="Serve on this Unix socket.")
@click.option("--allow-host", "hosts", metavar="HOST", multiple=True, help="Name of a proxy that browsers come from.")
@click.option("--run", metavar="RUN", help="Only this run.")
@click.option(
    "--every",
    "every_s",
    metavar="TIME",
    callback=seconds,
    help="Time between two pictures; 1s if left out, 15s for --textfile.",
)
@click.option(
    "--save",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="Write the page into one file, and end.",
)
@click.option(
    "--textfile",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write metrics for Prometheus into this file, again and again.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Use the token in this file of mode 0600; made if missing.",
)
@click.option("--until-eof", is_flag=True, help="End with standard input, too.")
@output_options
def command(
    name: str | None,
    port: int | None,
    place: Path | None,
    hosts: Sequence[str],
    run: str | None,
    every_s: int | None,
    file: Path | None,
    textfile: Path | None,
    token_file: Path | None,
    until_eof: bool,
) -> int:
    """Show ranks, calls, metrics, failures and output in a browser.

    Serves on a Unix socket that only you can open, and prints the line by which ssh brings it to your machine. Runs
    until Ctrl-C. NAME is an allocation; all of them if left out.
    """
    output = current_output()
    if sum(one is not None for one in (port, place, file, textfile)) > 1:
        raise click.UsageError("--port, --socket, --save and --textfile exclude each other")
    if every_s is None:
        every_s = _PAGE_EVERY_S if textfile is None else _TEXTFILE_EVERY_S
    targets = dict(Question(name, run, load_for_command({}).config, output).find_targets())
    if not targets:
        output.warn(NO_ALLOCATION)
        return 1
    if run is not None:
        refuse_absent(targets.items(), {"run": run})
    with contextlib.closing(Watch(targets, run, every_s)) as watch:
        if file is not None:
            return _save(file, watch, output)
        if textfile is not None:
            with _asked_to_end(until_eof) as asked:
                return _write_textfile(textfile.absolute(), watch, every_s, asked)
        access = PageAccess(_token(token_file), [host.lower() for host in hosts])
        with contextlib.ExitStack() as stack:
            if port is not None:
                server = stack.enter_context(open_loopback(port, access, watch))
            else:
                path = place.absolute() if place is not None else stack.enter_context(_private_folder()) / "dash.sock"
                server = stack.enter_context(open_socket(path, access, watch))
                stack.callback(path.unlink, missing_ok=True)
            asked = stack.enter_context(_asked_to_end(until_eof))
            _announce(server, targets, output)
            _serve(server, watch, asked)
        return 0


def _token(file: Path | None) -> str:
    """A secret; that of a file, if there is one.

    Raises:
        ConfigError: others may read or write the file, or it holds no token.
    """
    token = secrets.token_urlsafe(24)
    if file is None:
        return token
    file = file.absolute()
    with contextlib.suppress(FileExistsError):
        write_once(file, token.encode())
    text = read_private(file, _MAX_TOKEN_BYTES).decode(errors="replace").strip()
    if len(text) < _MIN_TOKEN_CHARS or not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", text):
        problem = f"holds no token: write at least {_MIN_TOKEN_CHARS} letters and digits into it, or remove it"
        raise ConfigError("", "", str(file), problem)
    return text


@contextlib.contextmanager
def _asked_to_end(until_eof: bool) -> Iterator[threading.Event]:
    """Turn the signals that ask for the end into an event; if *until_eof*, the end of standard input, too."""
    asked = threading.Event()
    previous = {one: signal.signal(one, lambda *_: asked.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    if until_eof:
        threading.Thread(target=_await_eof, args=(asked,), name="dash-input", daemon=True).start()
    try:
        yield asked
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def _await_eof(asked: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1 << 12):
            pass
    asked.set()


def _write_textfile(file: Path, watch: Watch, every_s: float, asked: threading.Event) -> int:
    """Write metrics until the end, then remove the file: a collector would take old values for new ones.

    Raises:
        ConfigError: the file cannot be written.
    """
    written = False
    try:
        while not asked.is_set():
            _publish(file, watch.scraper.text())
            written = True
            asked.wait(every_s)
    except OSError as error:
        raise ConfigError("", "", str(file), f"cannot be written: {error.strerror}") from error
    finally:
        if written:
            file.unlink(missing_ok=True)
    return 0


def _publish(file: Path, text: bytes) -> None:
    """Write a file whole or not at all, with the mode that the umask says: collectors run as users of their own."""
    scratch = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    descriptor = os.open(scratch, os.O_WRONLY | NEW_FILE, 0o666)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(text)
        os.replace(scratch, file)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    from monarch_hpc.attach.workers.private_folder import open_private_folder

    with open_private_folder() as folder:
        yield folder


def _announce(server: DashServer, targets: Mapping[str, Path], output: Console) -> None:
    token, address = server.access.token, server.server_address
    document: dict[str, object] = {"allocations": list(targets), "pid": os.getpid()}
    if isinstance(address, tuple):
        url = f"http://127.0.0.1:{address[1]}/#token={token}"
        text = f"open {url}\nbehind a proxy, its address of port {address[1]} with #token={token}"
        document |= {"port": address[1]}
    else:
        path = os.fspath(str(address))
        # The name of this very machine: an alias may lead to another login node.
        forward = f"{_BROWSER_PORT}:{path}"
        line = f"ssh -N -L {shlex.quote(forward)} {getpass.getuser()}@{os.uname().nodename}"
        url = f"http://localhost:{_BROWSER_PORT}/#token={token}"
        text = f"on your own machine:  {line}\nthen open:            {url}"
        document |= {"socket": path, "ssh": line}
    output.show({**document, "url": url}, f"{text}\nends with Ctrl-C", [url])


def _serve(server: DashServer, watch: Watch, asked: threading.Event) -> None:
    """Serve until the end is asked for."""
    serving = threading.Thread(target=server.serve_forever, name="dash-server", daemon=True)
    serving.start()
    watch.start()
    try:
        asked.wait()
    finally:
        watch.close()
        server.shutdown()
        serving.join()


def _save(file: Path, watch: Watch, output: Console) -> int:
    watch.look()
    time.sleep(_ONCE_S)
    picture, history = watch.look(), watch.look_back()
    logs: dict[str, str] = {}
    num_chars = 0
    procs = picture["procs"]
    assert isinstance(procs, list)
    for allocation, run, mesh, rank, *_ in procs[:_MAX_SAVED_LOGS]:
        number = str(rank) if mesh >= 0 else "-1"
        text = watch.logs(allocation, run, number)
        num_chars += len(text)
        if num_chars <= _MAX_SAVED_CHARS:
            logs[f"{allocation}/{run}/{number}"] = text
    document = {"picture": picture, "history": history, "logs": logs}
    page = saved_page(PAGE, document).encode()
    write_private(file.absolute(), page)
    warnings = picture["warnings"]
    assert isinstance(warnings, list)
    for warning in warnings:
        output.warn(warning)
    words = f"{file}: {len(procs)} processes, as they were now; open it in any browser"
    output.show({"file": str(file), "bytes": len(page), "num_procs": len(procs)}, words, [str(file)])
    return 0
