"""Checks that configs/default.yaml and the schema have the same keys, and that each key has a comment."""

from __future__ import annotations

import re

from monarch_hpc.config.document import parse_document
from monarch_hpc.config.schema import OWNER_ONLY, known_keys
from tests.guards.tree import ROOT

TEXT = (ROOT / "configs" / "default.yaml").read_text()


def test_every_key_has_a_default_and_every_default_a_key() -> None:
    keys = set(known_keys())
    given = {setting.key for setting in parse_document(TEXT, "default.yaml")}
    # Each flag of a mapping of flags is a separate setting; its key is the mapping.
    assert {key if key in keys else key.rpartition(".")[0] for key in given} == keys


def test_every_key_is_under_a_comment() -> None:
    explained = False
    for number, line in enumerate(TEXT.splitlines(), 1):
        if line.lstrip().startswith("#"):
            explained = True
        elif not line or re.fullmatch(r"\w+:", line):
            # A comment explains the keys right below it, up to a blank line or the next section.
            explained = False
        else:
            assert explained, f"default.yaml:{number}: no comment above {line.strip()!r}"


def test_keys_that_a_projects_file_may_not_set_exist_and_are_told() -> None:
    assert set(known_keys()) >= OWNER_ONLY
    for key in OWNER_ONLY:
        assert key in TEXT or f"{key.split('.')[0]}.*" in TEXT, f"default.yaml does not say that {key} is refused"
