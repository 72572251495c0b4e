"""Checks the documents against the code: links lead somewhere, commands exist, Python blocks run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from monarch_hpc.cli.main import cli
from monarch_hpc.core import errors
from monarch_hpc.wire.tables.catalog import TABLES
from tests.guards.tree import ROOT, for_each
from tests.starter import Starter, open_starter

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Block:
    """A fenced block of code: its place, its language, the rest of its first line, its text."""

    place: str
    language: str
    remark: str
    text: str


def blocks(path: Path) -> list[Block]:
    found = []
    for match in re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
        line = path.read_text()[: match.start()].count("\n") + 1
        found.append(Block(f"{path.relative_to(ROOT)}:{line}", match[1], match[2].strip(), match[3]))
    return found


BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]


def commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text, without comments."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.commenters = "#"
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word in (";", "&&", "||", "|", "&", "(", ")", ">", "<", ">>"):
                found.append(command)
                command = []
            else:
                command.append(word)
    return [command for command in found if command]


def check_monarch_hpc(arguments: list[str]) -> None:
    """Parse a command line as the program does, up to the point where it would act."""
    group: click.Command = cli
    while isinstance(group, click.Group):
        context = group.make_context("monarch-hpc", list(arguments), resilient_parsing=True)
        arguments = [*context._protected_args, *context.args]
        if not arguments:
            return
        name, command, arguments = group.resolve_command(context, arguments)
        if name is None or command is None:
            raise click.UsageError(f"no such command {name}")
        group = command
    group.make_context("monarch-hpc", list(arguments), resilient_parsing=True)


@for_each(b for b in BLOCKS if b.language in ("bash", "sh", "console"))
def test_commands_are_real(block: Block) -> None:
    for command in commands(block.text):
        name = Path(command[0]).name
        if name == "make":
            targets = {word for word in command[1:] if "=" not in word}  # the others are variables
            assert targets <= TARGETS, f"{block.place}: {command}"
        elif name == "monarch-hpc":
            try:
                check_monarch_hpc(command[1:])
            except click.ClickException as error:
                pytest.fail(f"{block.place}: {shlex.join(command)}: {error.format_message()}")


@for_each(BLOCKS)
def test_code_runs_or_says_why_not(block: Block) -> None:
    """A block that is labelled `python` runs; Python that cannot run here is labelled `py`, with the reason."""
    assert block.language in ("", "bash", "console", "py", "python", "yaml"), f"{block.place}: {block.language}"
    if block.language == "py":
        assert re.fullmatch("not run: .+", block.remark), f"{block.place}: say why: ```py not run: REASON"
        compile(block.text, block.place, "exec")
    else:
        assert not block.remark, f"{block.place}: {block.remark}"


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    with open_starter(tmp_path_factory.mktemp("documents"), 2, 120) as starter:
        yield starter


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=lambda b: b.place)
def test_python_runs(block: Block, starter: Starter, tmp_path: Path) -> None:
    compile(block.text, block.place, "exec")
    # Other tests run the whole examples; excerpts need not run again.
    if any(block.text.strip() in path.read_text() for path in (ROOT / "examples").glob("*.py")):
        return
    program = tmp_path / "block.py"
    program.write_text(block.text)
    status, output = starter.run(program, tmp_path)
    assert status == "0", f"{block.place}: {status}\n{output}"


@for_each(DOCUMENTS)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.exists(), f"{path}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{path}: {target}"


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_error_is_explained() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    missing = [name for name in errors.__all__ if f"\n| `{name}` |" not in text]
    assert not missing, f"docs/errors.md has no row for: {missing}"


def test_the_tables_have_the_columns_that_their_page_says() -> None:
    _, _, section = (ROOT / "docs" / "telemetry.md").read_text().partition("\n## Tables\n")
    found = re.findall(r"^\*\*(\w+)\*\*: (.*)\n\n((?:\|.*\n)+)", section, re.MULTILINE)
    head = "| column | type | meaning |\n|---|---|---|\n"
    assert found == [
        (
            table.name,
            table.about,
            head + "".join(f"| {c.name} | {c.kind.__name__} | {c.meaning} |\n" for c in table.columns),
        )
        for table in TABLES.values()
    ]


def test_the_readme_leads_to_every_page_and_concepts_to_every_example() -> None:
    readme, concepts = ((ROOT / name).read_text() for name in ("README.md", "docs/concepts.md"))
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name})" not in readme] == []
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"/{path.name})" not in concepts] == []


def test_the_architecture_leads_to_the_page_of_each_part() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    parts = sorted(path.name for path in (ROOT / "docs" / "architecture").glob("*.md"))
    assert parts and [name for name in parts if f"(architecture/{name}" not in page] == []


def test_the_readmes_first_screen_shows_both_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 100
