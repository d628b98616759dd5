"""The pages of the documentation: their links, headings and blocks of code."""

from __future__ import annotations

import re
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
