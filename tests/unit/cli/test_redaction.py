"""No secret passes, and what helps does."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.cli.checks.redaction import redact

KEY = bytes(range(7, 39))


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_API_KEY=abcdef",
        "export HF_TOKEN='ab cdef'",
        '{"password": "abcdef"}',
        "password: abcdef",
        "Authorization: Bearer abcdef",
        "git clone https://abcdef@example.org/x",
        "--token abcdef",
    ],
)
def test_what_follows_a_word_for_a_secret_is_left_out(text: str) -> None:
    assert "cdef" not in redact(text, {})


def test_a_key_is_left_out_in_every_notation() -> None:
    for told in (KEY.hex(), base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode()):
        assert told not in redact(f"key {told}\n", {}) and told not in redact(json.dumps([told]), {})


@given(st.dictionaries(st.from_regex(r"[A-Z]{3,9}", fullmatch=True), st.text(min_size=5), max_size=4))
def test_no_value_of_a_variable_stays(environ: dict[str, str]) -> None:
    shown = redact("a " + " b ".join(environ.values()), environ)
    names = "".join(f"${name}" for name in environ) + "(left out)ab "
    assert not [value for value in environ.values() if value in shown and value not in names]


def test_words_that_help_stay() -> None:
    text = "JobId=7 JobName=mh-7f3a91c2 NodeList=n[1-4] id 7f3a91c20123456789abcdef01234567 /usr/lib/python3/x.py:12"
    assert redact(text, {"SHORT": "7", "HOME": "/home/alice"}) == text
    assert redact("/home/alice/x", {"HOME": "/home/alice"}) == "$HOME/x"
