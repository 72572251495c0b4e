"""Profiles of procs: reads py-spy's samples, adds them up over ranks, draws them as a flame graph. Pure."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.profiles import ProfileRow

__all__ = ["add_up", "flame_page", "folded_lines", "parse_profile", "without_profile"]

_MAX_STACKS = 1000
_MAX_FRAMES = 128
_MAX_NAME = 200
"""Limits on what one proc can add to an answer: names come from its program."""

_WIDTH = 1200.0
_LINE = 18
_MIN_WIDTH = 0.6
"""Narrower frames, in pixels, are left out: they cannot be seen."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; }
@media (prefers-color-scheme: dark) { :root { --paper: #12171d; --ink: #e6ebf0; } }
body { margin: 1em; background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
svg { width: 100%; height: auto; }
text { font: 11px ui-monospace, monospace; fill: #14181d; pointer-events: none; }
rect { stroke: var(--paper); stroke-width: .5; }
g:focus rect, g:hover rect { stroke: var(--ink); stroke-width: 2; }
g:focus { outline: none; }
"""


def parse_profile(text: str, process: RunProcess, seconds: int, *, idle: bool) -> list[ProfileRow]:
    """Return the stacks in the output of ``py-spy record --format raw``, those with the most samples.

    Raises:
        ValueError: it is something else.
    """
    counted: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, num = line.rpartition(" ")
        frames = [frame.strip()[:_MAX_NAME] for frame in stack.split(";")]
        counted[";".join(frames[:_MAX_FRAMES])] += int(num)
    if not counted:
        return [
            without_profile(process, seconds, "none of its threads computed; --idle shows those that wait", idle=idle)
        ]
    return [
        ProfileRow(*process.first_columns, seconds, idle, stack, num, "")
        for stack, num in counted.most_common(_MAX_STACKS)
    ]


def without_profile(process: RunProcess, seconds: int, problem: str, *, idle: bool) -> ProfileRow:
    """Return the row of a proc that cannot be sampled."""
    return ProfileRow(*process.first_columns, seconds, idle, "", 0, problem)


def add_up(rows: Iterable[ProfileRow]) -> dict[str, int]:
    """Return samples by stack, over all procs; equal stacks once."""
    counted: Counter[str] = Counter()
    for row in rows:
        if not row.problem:
            counted[row.stack] += row.samples
    return dict(counted)


def folded_lines(rows: Iterable[ProfileRow]) -> list[str]:
    """Return the lines of a file of folded stacks, as other tools read it; the outermost frame is the rank."""
    counted: Counter[str] = Counter()
    for row in rows:
        if not row.problem:
            counted[f"r{row.rank:02d};{row.stack}"] += row.samples
    return [f"{stack} {num}" for stack, num in sorted(counted.items())]


@dataclass(slots=True)
class _Frame:
    samples: int = 0
    others: int = 0
    inner: dict[str, _Frame] = field(default_factory=dict)


def _tree(stacks: Mapping[str, int], others: Mapping[str, int]) -> _Frame:
    root = _Frame(sum(stacks.values()), sum(others.values()))
    for stack, num in stacks.items():
        frame = root
        for name in stack.split(";"):
            frame = frame.inner.setdefault(name, _Frame())
            frame.samples += num
    for stack, num in others.items():
        at: _Frame | None = root
        for name in stack.split(";"):
            at = at.inner.get(name) if at is not None else None
            if at is not None:
                at.others += num
    return root


def flame_page(title: str, stacks: Mapping[str, int], others: Mapping[str, int] | None = None) -> str:
    """Return a page with a flame graph, which needs no other file and runs no code.

    Args:
        stacks: samples by stack.
        others: those of other procs: frames that are there in a larger part of *stacks* than of these are red, those in
            a smaller part blue. None to colour frames by their names.
    """
    import hashlib  # with OpenSSL; each agent loads this module, and few draw

    root = _tree(stacks, others or {})
    boxes: list[str] = []
    depth = _draw(boxes, root, root, 0.0, 0, compared=others is not None)
    height = (depth + 1) * _LINE
    policy = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    legend = (
        "Red frames take a larger part here than in the others, blue ones a smaller part." if others is not None else ""
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{policy}'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
        f"<p>{root.samples} samples, 20 per second and thread. The outermost function is at the top. {legend}</p>\n"
        f'<svg viewBox="0 0 {_WIDTH:g} {height}" role="img" aria-label="flame graph">\n{"".join(boxes)}</svg>\n'
        "</body>\n</html>\n"
    )


def _draw(boxes: list[str], root: _Frame, frame: _Frame, left: float, depth: int, *, compared: bool) -> int:
    """Draw the frames inside of *frame*; return the deepest line."""
    deepest = depth
    for name, inner in sorted(frame.inner.items()):
        width = _WIDTH * inner.samples / root.samples
        if width < _MIN_WIDTH:
            continue
        share = inner.samples / root.samples
        label = f"{name}: {share:.1%}, {inner.samples} samples"
        colour = f"hsl({zlib.crc32(name.encode()) % 40 + 15} 80% 68%)"
        if compared:
            before = inner.others / root.others if root.others else 0.0
            label += f"; others {before:.1%}"
            strength = min(abs(share - before) * 2, 1.0)
            colour = f"hsl({8 if share > before else 215} {strength * 85:.0f}% {88 - strength * 28:.0f}%)"
        shown = name[: int(width / 6.8)] if width >= 20 else ""
        boxes.append(
            f'<g tabindex="0" aria-label="{_text(label)}"><title>{_text(label)}</title>'
            f'<rect x="{left:.1f}" y="{depth * _LINE}" width="{width:.1f}" height="{_LINE - 1}" fill="{colour}"/>'
            f'<text x="{left + 3:.1f}" y="{depth * _LINE + 13}">{_text(shown)}</text></g>\n'
        )
        deepest = max(deepest, _draw(boxes, root, inner, left, depth + 1, compared=compared))
        left += width
    return deepest


def _text(text: str) -> str:
    """The text in markup: no element, no control character."""
    import html  # with all its entities; each agent loads this module, and few draw

    return html.escape("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))
