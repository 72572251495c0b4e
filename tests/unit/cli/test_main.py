from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from monarch_hpc import __version__
from monarch_hpc.cli import main as main_module
from monarch_hpc.cli.main import VERBS, main
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.errors import AllocationError, JobFailed

Verb = Callable[[Callable[[], object]], None]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    """Install a verb `fake` with the test's action, and a state folder that the test can read."""
    monkeypatch.setenv("MONARCH_HPC_PATHS__STATE", str(tmp_path / "state"))
    monkeypatch.setattr(main_module, "VERBS", {"fake": "Do what the test says."})

    def install(action: Callable[[], object]) -> None:
        @click.command(name="fake")
        @output_options
        def command() -> object:
            return action()

        module = types.ModuleType("monarch_hpc.cli.fake")
        module.__dict__["command"] = command
        monkeypatch.setitem(sys.modules, "monarch_hpc.cli.fake", module)

    return install


def raising(error: BaseException) -> Callable[[], object]:
    def action() -> object:
        raise error

    return action


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb}  " in shown and text in shown for verb, text in VERBS.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'? See 'monarch-hpc --help'"),
        (["xyzzy", "-N"], "No such command 'xyzzy'; see 'monarch-hpc --help'"),
        (["stacks", "--ran", "1"], "No such option '--ran'. "),
        (
            ["completion"],
            "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish; see 'monarch",
        ),
        (["query", "--ask", "odd-stack", "SELECT 1"], "give a question in SQL or --ask odd-stack, not both; see"),
        (["query"], "give a question in SQL, or the name of one by --ask; --list shows them; see"),
    ],
)
def test_a_wrong_use_is_one_line_with_a_next_step(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 64
    err = capsys.readouterr().err
    assert err.startswith(f"monarch-hpc: error: {message}") and err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_without_a_verb_help_goes_to_stderr_and_usage_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: monarch-hpc")


@pytest.mark.parametrize(("result", "exit_code"), [(None, 0), (0, 0), (3, 3), (137, 137)])
def test_a_verb_returns_its_exit_code(verb: Verb, result: object, exit_code: int) -> None:
    verb(lambda: result)
    assert main(["fake"]) == exit_code


def test_an_error_is_one_sentence_with_its_notes_and_its_exit_code(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    error = AllocationError("demo", "is gone")
    error.add_note("released by you")
    verb(raising(error))
    assert main(["fake"]) == 72
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "monarch-hpc: error: allocation 'demo': is gone\nreleased by you\n"


def test_an_error_as_json_goes_to_stdout_alone(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(JobFailed(7, "TIMEOUT", "time limit")))
    assert main(["fake", "--json"]) == 72
    captured = capsys.readouterr()
    assert captured.err == ""
    message = "Slurm job 7 ended: TIMEOUT: time limit"
    assert json.loads(captured.out) == {
        "schema": 1,
        "error": {"type": "JobFailed", "message": message, "exit_code": 72},
    }


@pytest.mark.parametrize("arguments", [["nothing"], ["fake", "--nothing"], ["fake", "surplus"]])
def test_wrong_usage_says_what_and_where_help_is(
    verb: Verb, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    verb(lambda: None)
    assert main(arguments) == 64
    captured = capsys.readouterr()
    assert captured.err.startswith("monarch-hpc: error: ")
    assert "--help'" in captured.err
    assert main([*arguments, "--json"]) == 64
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "UsageError"


def test_an_interrupt_is_no_bug(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(KeyboardInterrupt()))
    assert main(["fake"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_bug_is_a_sentence_and_a_saved_traceback(
    verb: Verb, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    verb(raising(KeyError("x")))
    assert main(["fake"]) == 70
    (saved,) = (tmp_path / "state" / "tracebacks").iterdir()
    text = saved.read_text()
    assert f"monarch_hpc {__version__}" in text
    assert "KeyError: 'x'" in text
    error = capsys.readouterr().err
    assert f"unexpected KeyError: 'x' (details in {saved}); this is a bug" in error
    assert "Traceback" not in error


def test_a_bug_that_cannot_be_saved_shows_its_traceback(
    verb: Verb, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("not a folder")
    verb(raising(KeyError("x")))
    assert main(["fake"]) == 70
    error = capsys.readouterr().err
    assert error.index("Traceback") < error.index("(details in the lines above)")


def test_what_the_system_refuses_is_named(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(PermissionError(13, "Permission denied", "/scratch/x")))
    assert main(["fake"]) == 73
    assert "Permission denied: '/scratch/x'" in capsys.readouterr().err


def test_control_codes_from_elsewhere_do_not_reach_the_terminal(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(AllocationError("\x1b[2Jdemo", "a\r\nb\u202e")))
    main(["fake"])
    assert capsys.readouterr().err == "monarch-hpc: error: allocation '\\x1b[2Jdemo': a\\r\nb\\u202e\n"


def test_progress_goes_to_stderr_and_not_at_all_for_scripts(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        current_output().progress("queued")
        current_output().warn("slow")
        current_output().show({"name": "demo"}, "demo is ready", quiet=["demo"])

    verb(action)
    main(["fake"])
    assert capsys.readouterr() == ("demo is ready\n", "queued\nmonarch-hpc: warning: slow\n")
    main(["fake", "--quiet"])
    assert capsys.readouterr() == ("demo\n", "monarch-hpc: warning: slow\n")
    main(["fake", "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"schema": 1, "name": "demo"}
    assert captured.err == "queued\nmonarch-hpc: warning: slow\n"


@pytest.mark.parametrize("arguments", [["alloc", "--dry-run"], ["run", "--local", "1", "--", "true"]])
def test_what_every_process_would_refuse_is_refused_before_any_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("UCX_TLS", "sm,tcp")
    assert main(arguments) == 65
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "monarch-hpc: error: the environment: UCX_TLS = 'sm,tcp': opens UCX over tcp, which trusts its network, "
        "while fabric.trusted is false; name transports without tcp"
    )


def test_what_starts_no_process_works_with_any_transports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "all")
    assert main(["config", "show"]) == 0
    monkeypatch.setenv("MONARCH_HPC_FABRIC__TRUSTED", "true")
    assert main(["alloc", "--dry-run"]) == 0


def test_more_commands_on_a_host_than_it_takes_procs_are_a_mistake_in_the_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["exec", "--per-node", "100000", "--", "hostname"]) == 64
    assert "100000 is not in the range 1<=x<=16384" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_ends_as_with_them(tmp_path: Path, closed: str) -> None:
    start = "import sys; from monarch_hpc.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "run", "--local", "1", str(tmp_path / "missing.py")]
    assert subprocess.run(["bash", "-c", f'exec "$@" {closed}', "-", *command]).returncode == 66
