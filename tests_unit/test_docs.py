"""The pages hold together: links lead somewhere, tables are whole, and what is generated is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import contracts.checks
from contracts.contract import LAW
from contracts.court.deviations import load
from contracts.harness.question_pages import page

pytestmark = pytest.mark.unit
assert contracts.checks

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OURS = "rankproof"


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _anchors(path: Path) -> set[str]:
    """The anchors of a page as GitHub makes them of headings, and those written by hand."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = [re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()) for line in text.splitlines() if line[:1] == "#"]
    return {heading.strip().replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_link_leads_to_a_file_and_to_a_heading(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert not lost


def test_the_reference_of_the_questions_is_current() -> None:
    assert _text("docs/questions.md") == page(LAW), (
        "write it: python -m contracts.harness.question_pages docs/questions.md"
    )


def test_every_page_can_be_reached_from_the_index() -> None:
    told = _text("docs/index.md")
    assert not [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md" and path.name not in told]


def test_the_index_has_every_family_of_the_law_and_no_other() -> None:
    table = _text("docs/index.md").partition("## Families")[2]
    listed = re.findall(r"^\| ([A-Z]+) \|", table, re.MULTILINE)
    assert sorted(listed) == sorted({each.family for each in [*LAW.contracts.values(), *LAW.untested.values()]})


def test_every_word_of_a_source_has_its_place() -> None:
    anchors, text = _anchors(ROOT / "docs/sources.md"), _text("docs/sources.md")
    word = re.compile(r"\b(naming|hub|bringup|playbook|modal|F\d\d|[A-Z]{2,3}-\d\d)\b")
    words = {found for each in LAW.contracts.values() for found in word.findall(each.source)}
    documents = {found for found in words if "-" not in found}
    assert {"naming", "F04"} <= documents
    assert not {found for found in documents if found.lower() not in anchors}
    families = {each.family for each in LAW.contracts.values()}
    cited = {found.partition("-")[0] for found in words - documents} - families
    letters = cited | {bug.partition("-")[0] for mutant in LAW.mutants for bug in mutant.bugs}
    assert not {each for each in letters if f"| {each} |" not in text}


def test_no_install_line_names_this_project_as_if_an_index_had_it() -> None:
    """Until a release is on an index, its name there may be anybody's."""
    lines = [(path.name, line) for path in PAGES for line in path.read_text(encoding="utf-8").splitlines()
             if re.search(r"pip install\b.*\b(rankproof|rankproof)\b", line)]  # fmt: skip
    assert not [line for line in lines if not re.search(rf"{OURS}(\[[a-z,]+\])? @ |{OURS}-[\d.]+-py3", line[1])]


def test_a_bug_of_the_readme_is_declared_with_its_script() -> None:
    rows = re.findall(
        r"^\| (Megatron-Core|torchtitan) ([\d., ]+) \|.*\((docs/confirmed/\w+\.py)\) \| ([A-Z]+-\w+) \|$",
        _text("README.md"), re.MULTILINE,
    )  # fmt: skip
    assert len(rows) == _text("README.md").count("](docs/confirmed/")
    newest = {"Megatron-Core": ("megatron", "0.19.2"), "torchtitan": ("torchtitan", "0.3.0")}
    undeclared = []
    for package, versions, script, id in rows:
        stack, current = newest[package]
        for version in versions.split(", "):
            name = stack if version == current else f"{stack}=={version}"
            declared = load(ROOT / f"docs/deviations/{name}.toml")
            if not any(each.id == id and each.issue.startswith(script) for each in declared):
                undeclared.append((name, id, script))
    assert not undeclared
