"""The command `ringcore explain`: what an error means, and the mistakes that lead to it, from docs/errors.md."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from ringcore._display import print_markdown
from ringcore._errors import RingcoreError

_PAGE = Path(__file__).parents[1] / "errors.md"  # The build puts docs/errors.md there.


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 2 when there is no such error, or no such mistake.
    """
    options = _parser().parse_args(argv)
    page = re.sub(r"<!--.*?-->\n+", "", _PAGE.read_text("utf-8"), flags=re.DOTALL)
    sections = {_anchor(section): section for section in _split(page, "## ")}
    errors = re.findall(r"^`(\w+)`:", page, re.MULTILINE)
    if options.error is None:
        print("ringcore explain ERROR, which is one of " + ", ".join(errors))
        return 0
    wanted = _section_of(options.error.rpartition(".")[2], sections)
    if wanted not in sections:
        near = get_close_matches(options.error, [*errors, *sections], 1)
        guess = f"; did you mean {near[0]!r}?" if near else ": there is " + ", ".join(errors)
        print(f"ringcore explain: there is no error {options.error!r}{guess}", file=sys.stderr)
        return 2
    head, *mistakes = _split(sections[wanted], "### ")
    if options.words:
        mistakes = [each for each in mistakes if all(word.lower() in each.lower() for word in options.words)]
        if not mistakes:
            print(f"ringcore explain: no mistake there has the words {' '.join(options.words)!r}", file=sys.stderr)
            return 2
        print_markdown("\n".join(mistakes).strip())
    else:
        print_markdown("\n".join([head, *(f"- {_title(each)}. {_remedy(each)}" for each in mistakes)]).strip())
        if mistakes:
            print(f"\nA mistake's script and what it says: ringcore explain {wanted} WORD...")
    return 0


def _section_of(error: str, sections: Mapping[str, str]) -> str:
    """DeadlockError and deadlock are the same; some sections have several exceptions, and the page itself the base."""
    told = (section for section, text in sections.items() if re.search(f"^`{re.escape(error)}`:", text, re.MULTILINE))
    return next(told, RingcoreError.section if error == RingcoreError.__name__ else error.lower())


def _split(text: str, heading: str) -> list[str]:
    return re.split(f"^(?={heading})", text, flags=re.MULTILINE)


def _title(part: str) -> str:
    return part.partition("\n")[0].lstrip("# ")


def _anchor(section: str) -> str:
    return _title(section).lower().replace(" ", "-")


def _remedy(mistake: str) -> str:
    return mistake.rpartition("Remedy: ")[2].strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringcore explain", description="What an error means, and the mistakes that lead to it, with the remedy."
    )
    parser.add_argument(
        "error", metavar="ERROR", nargs="?", help="mismatch, or MismatchError; without: which there are"
    )
    parser.add_argument(
        "words", metavar="WORD", nargs="*", help="show the mistakes with these words, and their scripts"
    )
    return parser
