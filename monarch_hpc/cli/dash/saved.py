"""A dashboard as one file that needs no server and no network. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.cli.dash.document import encode

__all__ = ["saved_page"]


def saved_page(page: Path, document: Mapping[str, object]) -> str:
    """Return the page with its scripts, its styles and what it shows.

    Args:
        page: the folder of the page's files.
    """
    script = "".join((page / name).read_text() for name in ("charts.js", "dash.js"))
    style = (page / "dash.css").read_text()
    # In an element of a script, only `<` can end it.
    data = encode(document).decode().replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    text = (page / "index.html").read_text()
    for old, new in {
        '<meta name="policy">': f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="dash.css">': f"<style>{style}</style>",
        '<script src="charts.js" defer></script>': f'<script type="application/json" id="saved">{data}</script>',
        '<script src="dash.js" defer></script>': "",
        "</body>": f"<script>{script}</script>\n</body>",
    }.items():
        before, found, after = text.partition(old)
        assert found, f"index.html lacks {old}"
        text = before + new + after
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
