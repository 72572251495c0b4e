"""Checks that configs/default.yaml and the schema have the same keys, that each key has a comment, and parsed.json.

`BLESS=1 pytest tests/guards/test_config_keys.py` writes configs/parsed.json anew.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path

from monarch_hpc.config.document import parse_document
from monarch_hpc.config.schema import OWNER_ONLY, known_keys
from monarch_hpc.config.shipped import PARSED, checksum, read_shipped
from monarch_hpc.config.site import head_of
from tests.guards.tree import ROOT

CONFIGS = ROOT / "configs"
TEXT = (CONFIGS / "default.yaml").read_text()


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


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path | datetime.date) else value


def test_shipped_files_are_read_without_parsing_them_and_the_same() -> None:
    texts = {str(path.relative_to(CONFIGS)): path.read_text() for path in sorted(CONFIGS.rglob("*.yaml"))}
    lines = []
    for name, text in texts.items():
        whole, head = parse_document(text, name), parse_document(head_of(text), name)
        settings = [[one.key, _plain(one.value), int(one.origin.rpartition(":")[2])] for one in whole]
        lines.append(f"{json.dumps(name)}: {json.dumps([checksum(text), len(head), settings])}")
    found = "{\n" + ",\n".join(lines) + "\n}\n"
    if os.environ.get("BLESS"):
        (CONFIGS / PARSED).write_text(found)
    assert (CONFIGS / PARSED).read_text() == found, "BLESS=1 writes it anew"
    for name, text in texts.items():
        assert list(read_shipped(name, head=False)) == parse_document(text, f"configs/{name}")
        assert list(read_shipped(name, head=True)) == parse_document(head_of(text), f"configs/{name}")
