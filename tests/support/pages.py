"""The pages of the documentation: their links, headings and blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Where a page leads, its images too."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


def anchors(page: Path) -> set[str]:
    """What a link may name behind "#": headings, as GitHub and the site name them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?)#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = sum(anchor == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", anchor) is not None for anchor in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: Where it stands.
        line: Its first line there.
        language: As behind the fence; empty for an indented block.
        text: The code.
        reason: Why it is not run: the page has `<!-- not run: REASON -->` before it.
        file: Its name, if it has one: in its first line ("# train.py"), or `<!-- file: plan.json -->` before it.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str
    file: str


def blocks(page: Path) -> list[Block]:
    """All of a page, in order."""
    text = page.read_text()
    said = r"(?:^<!-- (?P<what>not run|file): (?P<said>[^>]*) -->\n+)?"
    fenced = r"^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$"
    found = []
    for match in re.finditer(said + fenced, text, re.MULTILINE | re.DOTALL):
        reason, file = (match["said"] if match["what"] == what else "" for what in ("not run", "file"))
        named = re.match(r"(?:#|/\*) ?([\w-]+\.\w+)(?: \*/)?\n", match["text"])
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, line, match["language"], match["text"], reason, file or (named[1] if named else "")))
    return found
