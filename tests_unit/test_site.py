"""The site: built strictly, every link and anchor in it leads somewhere, and no page asks another host for anything."""

import functools
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from tests_unit._parties.law import LAW
from tests_unit._parties.running import ROOT, environment, ran
from tests_unit.gate._browser import CHROMIUM, browser
from website.known import PACKAGES, bugs

MKDOCS = ROOT / ".venv-site/bin/mkdocs"
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not MKDOCS.exists(), reason="needs the environment of `make site`"),
]


class Page(HTMLParser):
    """The links of a page, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {each for name in ("id", "name") if (each := given.get(name))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        elif tag != "link" or given.get("rel") not in ("canonical", "prev", "next"):
            self.loads += [
                each for name in ("src", "href", "srcset", "data") if tag != "a" and (each := given.get(name))
            ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("site")
    done = ran([MKDOCS, "build", "--strict", "--quiet", "--site-dir", at], cwd=ROOT,
               env=environment(NO_MKDOCS_2_WARNING="1"), limit_s=600, code=0)  # fmt: skip
    assert not done.stdout + done.stderr
    return at


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {f"/{path.relative_to(site)}".removesuffix("index.html"): Page(path) for path in site.rglob("*.html")}


def test_every_link_and_anchor_of_the_site_has_a_target(site: Path, pages: dict[str, Page]) -> None:
    lost, followed = [], 0
    for at, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(urljoin(at, link))
            if ":" not in target and at != "/404.html":
                followed += 1
                known = unquote(anchor) in ("", *pages[target].anchors) if target in pages else not anchor
                if not known or not (site / unquote(target).lstrip("/")).exists():
                    lost.append(f"{at}: {link}")
    assert not lost
    assert followed > 10_000


def test_the_site_loads_nothing_from_other_hosts(pages: dict[str, Page]) -> None:
    assert all(page.loads for page in pages.values())
    assert not {(at, each) for at, page in pages.items() for each in page.loads if "//" in each}


def test_every_contract_has_its_anchor_and_every_bug_its_page(site: Path, pages: dict[str, Page]) -> None:
    asked = [*LAW.contracts.values(), *LAW.untested.values()]
    assert not [each.id for each in asked if each.id not in pages[f"/contracts/{each.family}/"].anchors]
    for bug in (bug for package in PACKAGES for bug in bugs(package)):
        text = (site / f"bugs/{bug.script}/index.html").read_text(encoding="utf-8")
        assert all(f"#{id}" in text for id in bug.contracts)
        led = f"{bug.what}{bug.remedy}{bug.upstream}".count("](https://")
        assert led == text.partition("<h1")[2].partition("<pre")[0].count('href="https://')


def test_each_number_of_the_matrix_counts_the_bugs_that_it_leads_to(site: Path) -> None:
    text = (site / "packages/index.html").read_text(encoding="utf-8")
    for package, (name, versions) in PACKAGES.items():
        for version in versions:
            [row] = re.findall(rf"<tr><th>{re.escape(name)} {re.escape(version)}</th>(.*?)</tr>", text)
            shown = re.findall(r'class="deviates" title="([A-Z]+)[^"]*"><a href="../bugs/([^"]+)">(\d+)<', row)
            here = [bug for bug in bugs(package) if version in bug.versions]
            known = {family: [bug for bug in here if any(id.startswith(f"{family}-") for id in bug.contracts)]
                     for family in {id.partition("-")[0] for bug in here for id in bug.contracts}}  # fmt: skip
            assert {family: int(count) for family, _, count in shown} == {each: len(known[each]) for each in known}
            for family, link, _ in shown:
                page = f"{known[family][0].script}/" if len(known[family]) == 1 else f"{package}/#{family.lower()}"
                assert link == page


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_sites_pages_fit_two_widths_in_both_themes_and_search_works(address: str, tmp_path: Path) -> None:
    for width, dark in ((1280, False), (390, True)):
        with browser(tmp_path / str(width)) as page:
            for name in ("", "packages/", "megatron/", "bugs/torchtitan_single_row/", "contracts/PAR/", "api/"):
                page.open(address + name, width=width, dark=dark)
                assert page.run("document.documentElement.scrollWidth") <= width, name
                assert page.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
                assert not page.complaints
                assert all(each.startswith((address, "data:")) for each in page.requests)
            page.open(f"{address}?q=PAR-05e", width=width, dark=dark)
            page.until("document.querySelector('.md-search-result__link[href*=\"contracts/PAR/\"]') !== null")
            assert all(each.startswith((address, "data:", "blob:")) for each in page.requests)
