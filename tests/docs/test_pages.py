"""The documentation hangs together: links and anchors lead somewhere, what is made from the code is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ringcore
import tomllib
from support import pages, settings_page


@pytest.mark.parametrize("page", [*pages.PAGES, *pages.READMES, *pages.OTHERS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in pages.links(page):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in pages.anchors(path), f"{page.name}: {link}: {sorted(pages.anchors(path))}"


@pytest.mark.parametrize("page", pages.READMES[1:], ids=lambda page: page.parent.name)
def test_a_distributions_page_links_to_addresses_only(page: Path) -> None:
    # It is shown where the repository is not.
    assert all(link.startswith("https://") for link in pages.links(page))


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_the_site_leads_to_every_page(page: Path) -> None:
    named = re.findall(r"^[\w.-]+$", (pages.DOCS / "index.md").read_text(), re.MULTILINE)
    assert page.parent.name == "adr" or page.stem in {*named, "index"}


def test_the_table_of_versions_is_that_of_the_distributions() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `(ringcore[\w-]*)` \| `([^`]+)` \| (.*) \|$", (pages.DOCS / "index.md").read_text(), re.M
    )
    projects = {}
    for path in pages.ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        projects[project["name"]] = project
    assert {name for name, *_ in rows} == set(projects)
    for name, python, works_with in rows:
        project = projects[name]
        assert project["requires-python"] == python, name
        extras = project.get("optional-dependencies", {})
        needs = {*project.get("dependencies", []), *(need for extra in extras.values() for need in extra)}
        exact = [version for version in re.findall(r"`([^`]+)`", works_with) if re.search("[=<>]", version)]
        assert set(exact) <= needs, name


def exceptions(kind: type[ringcore.RingcoreError]) -> list[type[ringcore.RingcoreError]]:
    found = [kind, *(each for below in kind.__subclasses__() for each in exceptions(below))]
    return [each for each in found if each.__module__ == "ringcore"]


@pytest.mark.parametrize("kind", exceptions(ringcore.RingcoreError), ids=lambda kind: kind.__name__)
def test_the_address_that_a_message_prints_exists(kind: type[ringcore.RingcoreError]) -> None:
    (note,) = kind("what happened").__notes__
    told = re.fullmatch(r"See `ringcore explain ([\w-]+)` \((.+)#([\w-]+)\)\.", note)
    assert told is not None, note
    section, page, anchor = told.groups()
    assert section == anchor
    assert anchor in pages.anchors(pages.ROOT / page)


def test_the_page_of_settings_is_made_from_the_code() -> None:
    fresh = "write it with: python tests/support/settings_page.py"
    assert settings_page.PAGE.read_text() == settings_page.page(), fresh
