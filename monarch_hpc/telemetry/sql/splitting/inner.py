"""Questions in parentheses: those that have all tables of hosts may be split, and the text around them stays. Pure."""

from __future__ import annotations

import sqlglot
from sqlglot import TokenType

from monarch_hpc.telemetry.sql.plan import PARTIAL
from monarch_hpc.telemetry.sql.splitting.texts import DIALECT
from monarch_hpc.wire.tables.pieces import ON_HOSTS

__all__ = ["inner_questions"]

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)

_MOST = 4
"""Questions in each other that are tried: each takes as long as to plan one."""


def inner_questions(sql: str) -> list[slice]:
    """Return the places of questions in parentheses without which a text names no table of hosts; the outer ones first.

    They are those of CTEs, or tables or values of the question around them.
    """
    try:
        tokens = sqlglot.tokenize(sql, dialect=DIALECT)
    except sqlglot.errors.SqlglotError:
        return []
    if any(one.text.lower() == PARTIAL for one in tokens):
        return []
    named = [one.start for one in tokens if one.token_type in _NAMES and one.text in ON_HOSTS]
    found, opened = [], []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type is TokenType.L_PAREN:
            opened.append((token.end + 1, following is not None and following.token_type is TokenType.SELECT))
        elif token.token_type is TokenType.R_PAREN and opened:
            begin, is_question = opened.pop()
            if is_question and named and begin < min(named) and max(named) < token.start:
                found.append(slice(begin, token.start))
    return sorted(found, key=lambda place: place.start)[:_MOST]
