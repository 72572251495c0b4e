"""Guards the project's words: the glossary is complete, sorted and in use, and no identifier is a picture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.guards.tree import ROOT, Module, for_each, modules

CONCEPTS = ROOT / "docs" / "concepts.md"

# Words that a user meets in messages, commands and pages, and must be able to look up.
REQUIRED = {
    "actor",
    "agent",
    "allocation",
    "attempt",
    "cast",
    "channel",
    "controller",
    "embedded allocation",
    "endpoint",
    "fence",
    "head",
    "host",
    "incarnation",
    "lane",
    "mesh",
    "port",
    "proc",
    "rank",
    "roster",
    "run",
    "supervision",
    "sweep",
    "worker",
    "zygote",
}

# Pictures, which explain nothing to a reader who has not seen their docstring, and the field's terms for them.
PICTURES = {
    "aim": "target",
    "aims": "targets",
    "allowance": "token_bucket",
    "attendant": "private_folder",
    "bear": "launch",
    "bed": "sleeper",
    "birth": "spawn",
    "births": "spawner",
    "born": "spawned, started",
    "buried": "ended, reaped",
    "bury": "end, reap",
    "caster": "sender",
    "crowd": "half_open, limit",
    "deaf": "closed",
    "grave": "record, cause",
    "graves": "records, causes",
    "guardian": "failures",
    "hire": "attach",
    "hired": "attached",
    "hiring": "attach",
    "inquest": "death_causes",
    "ledger": "records",
    "mourn": "report, look_up_cause",
    "mourner": "cause_lookup",
    "newborn": "zygote_launch",
    "nobody": "none, no_peer",
    "ration": "rate_limit",
    "rations": "rate_limit, share",
    "recall": "cancellation",
    "recalls": "cancellations",
    "reception": "receiver",
    "seat": "roster entry",
    "seats": "roster",
    "sit": "begin_wait (for sit_down)",
    "somebody": "peer, process",
    "local_facts": "process, environment",
    "testify": "report",
    "testimony": "report",
    "vigil": "stop_watch",
    "ward": "owned",
    "wards": "ownership",
    "whereabouts": "proc_addresses",
    "whoever": "peer, caller, sender",
}


def glossary() -> list[tuple[str, str]]:
    """Return the rows of the glossary: term and meaning."""
    _, _, section = CONCEPTS.read_text().partition("\n## Glossary\n")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return [(term.strip(), meaning.strip()) for term, meaning in rows if term not in ("word", "---")]


def corpus() -> str:
    """Return all pages but the glossary itself, and all modules, in small letters."""
    pages = [path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path != CONCEPTS]
    before, _, _ = CONCEPTS.read_text().partition("\n## Glossary\n")
    texts = [before, *(path.read_text() for path in [*pages, *(module.path for module in modules())])]
    return re.sub(r"\s+", " ", "\n".join(texts)).lower()


def test_the_glossary_holds_the_words_that_users_must_learn() -> None:
    terms = {term for term, _ in glossary()}
    assert not REQUIRED - terms, f"docs/concepts.md has no row for: {sorted(REQUIRED - terms)}"


def test_the_glossary_is_sorted_and_explains_each_word_once() -> None:
    terms = [term.lower() for term, _ in glossary()]
    assert terms == sorted(set(terms))


def test_each_word_of_the_glossary_is_in_use() -> None:
    text = corpus()
    unused = [term for term, _ in glossary() if not re.search(rf"\b{re.escape(term.lower())}(s|es)?\b", text)]
    assert not unused, f"no page and no module uses: {unused}"


def test_each_meaning_is_one_line_that_does_not_repeat_the_word() -> None:
    for term, meaning in glossary():
        assert meaning, term
        assert not re.match(rf"(an? |the )?{re.escape(term)}\b", meaning, re.IGNORECASE), f"{term}: {meaning}"


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of the variables, attributes, parameters and definitions of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def pictures_in(name: str) -> list[str]:
    """Return the words of an identifier, in snake case or camel case, that are pictures."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [word.lower() for word in words if word.lower() in PICTURES]


@for_each(modules())
def test_no_identifier_is_a_picture(module: Module) -> None:
    names = [(1, module.path.stem), *identifiers(module.tree)]
    found = sorted(
        {f"{name} (line {line}): write {PICTURES[word]}" for line, name in names for word in pictures_in(name)}
    )
    assert not found, f"{module.path.relative_to(ROOT)}: {found}"


def test_the_guard_takes_identifiers_apart() -> None:
    assert pictures_in("_sit_down") == ["sit"]
    assert pictures_in("OpenReception") == ["reception"]
    assert pictures_in("MAX_WARDS") == ["wards"]
    assert pictures_in("position") == []
    assert pictures_in("forward") == []
