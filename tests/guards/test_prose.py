"""Guards the house's English where a program can check it: module docstrings open with a noun or a verb."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.guards.tree import ROOT, for_each, parse

FILES = [path for folder in ("monarch_hpc", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]

INTERROGATIVE = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|Where|How|Which|Whether|When|Why)\b")


def opens_with_a_question_word(docstring: str) -> bool:
    return INTERROGATIVE.match(docstring.lstrip()) is not None


@for_each(FILES)
def test_a_module_docstring_opens_with_a_noun_or_a_verb(path: Path) -> None:
    docstring = ast.get_docstring(parse(path)) or ""
    first_line = docstring.partition("\n")[0]
    assert not opens_with_a_question_word(docstring), (
        f"{path.relative_to(ROOT)}: {first_line!r} opens with a question word: start with what the module is (a noun), "
        "or does (a verb in the third person)"
    )


def test_the_guard_tells_question_words_from_words_that_begin_alike() -> None:
    assert opens_with_a_question_word("Whether shared memory works.")
    assert opens_with_a_question_word("\n    How calls are answered.")
    assert not opens_with_a_question_word("Whole files, written at once.")
    assert not opens_with_a_question_word("Reads what a process has recorded.")
