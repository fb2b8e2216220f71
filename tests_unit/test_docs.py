"""The pages hold together: links lead somewhere, tables are whole, and what is generated is current."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from contracts.court import promises
from contracts.court.promises import PROMISES
from contracts.court.sources import BUGS, DOCUMENTS, FAULTS, PAGE, explained
from contracts.harness import convention_page
from contracts.harness.question_pages import page
from contracts.spec.kernels import CATALOGUE
from tests_unit._parties.law import LAW
from website.known import PACKAGES, bugs, declared

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


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


def test_the_page_of_conventions_is_current() -> None:
    assert _text("docs/conventions.md") == convention_page.page(LAW), (
        "write it: python -m contracts.harness.convention_page docs/conventions.md"
    )


def test_the_page_of_promises_is_current() -> None:
    assert _text("docs/promises.md") == promises.page(), "write it: python -m contracts.court.promises docs/promises.md"


@pytest.mark.parametrize("id", PROMISES)
def test_each_test_that_promises_names_exists(id: str) -> None:
    """A name that pytest collects: a function of the module, or of a class whose name begins with Test."""
    assert PROMISES[id].tests or PROMISES[id].lacks
    for name in PROMISES[id].tests:
        file, *path = name.split("::")
        body = ast.parse(_text(file)).body
        for part in path:
            [found] = [each for each in body if isinstance(each, (ast.ClassDef, ast.FunctionDef)) and each.name == part]
            assert found.name.startswith("Test" if isinstance(found, ast.ClassDef) else "test_")
            body = found.body


def test_each_promise_under_attack_has_tests() -> None:
    rows = re.findall(
        r"^\| .* \| ([^|]+) \|$", _text("docs/gate.md").partition("## Promises under attack")[2], re.MULTILINE
    )[1:]
    tests = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests_unit").rglob("*.py")}
    everything = "\n".join(tests.values())
    assert len(rows) > 30
    for row in rows:
        for named in re.findall(r"`([^`]+)`|(GATE-\w+)", row):
            name = "".join(named)
            known = name in PROMISES or re.search(rf"\b{re.escape(name)}\b", everything)
            assert any(path.name == Path(name).name for path in tests) if name.endswith(".py") else known, name


def test_every_page_can_be_reached_from_the_index() -> None:
    told = _text("docs/index.md")
    assert not [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md" and path.name not in told]


def test_the_index_has_every_family_of_the_law_and_no_other() -> None:
    table = _text("docs/index.md").partition("## Families")[2]
    listed = re.findall(r"^\| ([A-Z]+) \|", table, re.MULTILINE)
    assert sorted(listed) == sorted({each.family for each in [*LAW.contracts.values(), *LAW.untested.values()]})


OTHERS = ("Megatron-Core", "Megatron-LM's", "mamba-ssm", "cppmega", "torchtitan", "nccl-tests", "torchrun -m pytest",
            "pytorch 2.13", "NVIDIA's data sheets", "torch", "Transformer Engine", "transformers",
            "flaxformer", "apex")  # fmt: skip


# In a rule of the kernel catalogue what follows the first semicolon is a fact, and no further source.
def test_rows_of_the_law_without_a_check_are_held_by_contracts() -> None:
    rows = re.findall(r"^\| ([A-Z]+-\d+) \| .* \| (.*) \|$", _text("docs/index.md"), re.MULTILINE)
    assert [row for row, _ in rows] == ["PAR-15", "PAR-17", "OBS-19"]
    for row, held in rows:
        named = re.findall(r"[A-Z]+-\d+[a-z]?", held)
        assert row not in LAW.contracts
        assert named
        assert {*named} <= LAW.contracts.keys(), row


SOURCES = sorted({*(each.source for each in LAW.contracts.values()), *(r.source.partition(";")[0] for r in CATALOGUE)})


@pytest.mark.parametrize("source", SOURCES)
def test_every_part_of_a_contracts_source_has_a_link(source: str) -> None:
    lost = []
    for line in explained(source):
        anchor = re.search(r" \(docs/sources\.md#([\w-]+)\)", line)
        command = re.search(r" \(rankproof explain ([\w-]+)\)$", line)
        linked = re.search(r" \(https://(arxiv\.org/abs/[\d.]+|github\.com/[\w-]+/[\w-]+/issues/\d+)", line)
        if anchor is not None:
            lost += [line] if anchor[1] not in _anchors(ROOT / PAGE) else []
        elif command is not None:
            lost += [line] if command[1] not in PROMISES else []
        elif linked is None and not line.startswith(OTHERS):
            lost.append(line)
    assert not lost


def test_the_titles_of_sources_equal_those_of_the_page() -> None:
    text = _text(PAGE)
    rows = {id: f'<a id="{id.lower()}"></a>{id} | {title} |' for id, title in FAULTS.items()}
    rows |= {letters: f"| {letters} | {title} |" for letters, title in BUGS.items()}
    rows |= {word: f"### {word}\n\n*{title}.*" for word, title in DOCUMENTS.items()}
    assert not [row for row in rows.values() if row not in text]
    documents = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert {*documents, *re.findall(r"\bF\d\d\b(?= \|)", text)} == {*DOCUMENTS, *FAULTS}


@pytest.mark.parametrize(("source", "lines"), [
    ("hub; F04", ('note "H200 Training and Kernel Bring-Up" (docs/sources.md#hub)',
                  f"fault family F04: {FAULTS['F04']} (docs/sources.md#f04)")),
    ("naming hub: GB10", ('note "H200 Bringup and Naming: What Had to Be Made Explicit" (docs/sources.md#naming): GB10',
                          'note "H200 Training and Kernel Bring-Up" (docs/sources.md#hub): GB10')),
    ("law: GATE-01, GATE-02", ("requirement of this project (docs/sources.md#this-project): GATE-01, GATE-02",)),
    ("SSM-18", ("bug SSM-18: Mamba and other recurrent blocks (docs/sources.md#bug-ids)",)),
    ("SSM", ("bugs SSM: Mamba and other recurrent blocks (docs/sources.md#bug-ids)",)),
    ("hub; no F04: x", ('note "H200 Training and Kernel Bring-Up" (docs/sources.md#hub)', "no F04: x")),
    ("GATE-05", ("GATE-05 (rankproof explain GATE-05)",)),
    ("arXiv 2405.21060 §7.2; mamba-ssm 2.3.2", ("arXiv 2405.21060 §7.2 (https://arxiv.org/abs/2405.21060)",
                                                "mamba-ssm 2.3.2")),
    ("torch issues 137425, 198199", ("torch issues 137425, 198199 (https://github.com/pytorch/pytorch/issues/137425, "
                                     "https://github.com/pytorch/pytorch/issues/198199)",)),
    ("mamba #217: undefined symbol", ("mamba #217: undefined symbol (https://github.com/state-spaces/mamba/issues/217)",)),
    ("unheard-of #3, OLMo-core #4, arXiv 2405.21060", (
        "unheard-of #3, OLMo-core #4, arXiv 2405.21060 (https://arxiv.org/abs/2405.21060, "
        "https://github.com/allenai/OLMo-core/issues/4)",
    )),
    ("a word of another suite: x", ("a word of another suite: x",)),
])  # fmt: skip
def test_a_contracts_source_is_explained_in_words(source: str, lines: tuple[str, ...]) -> None:
    assert explained(source) == lines


def test_every_prefix_of_a_bug_id_is_explained() -> None:
    assert {bug.partition("-")[0] for mutant in LAW.mutants for bug in mutant.bugs} <= BUGS.keys()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_packages_page_lists_its_deviations_for_the_same_versions(package: str) -> None:
    rows = [bug for bug in bugs(package) if bug.contracts]
    known = list(declared(package))
    assert {(bug.script, id) for bug in rows for id in bug.contracts} == {(script, id) for script, id, *_ in known}
    assert {(bug.script, each) for bug in rows for each in bug.versions} == {(each[0], each[2]) for each in known}


def test_every_confirmed_bug_in_a_packages_page_is_parsed() -> None:
    told = {package: _text(f"docs/{package}.md").partition("## How it is asked")[0] for package in PACKAGES}
    read = {f"confirmed/{bug.script}.py" for package in PACKAGES for bug in bugs(package)}
    assert sum(text.count("](confirmed/") for text in told.values()) == len(read)


def test_every_unreported_fault_has_a_report_ready() -> None:
    reports = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/confirmed/reports").glob("*.md")}
    unreported = {
        each.script: each for package in PACKAGES for each in bugs(package) if "](http" not in each.what + each.upstream
    }
    others = ("nemo_automodel_", "olmo_core_", "torch_")
    assert {script for script in reports if not script.startswith(others)} == unreported.keys()
    for script, report in reports.items():
        title, seen, happens, expected, reproduce = report.split("\n\n")[:5]
        assert title.startswith("# ")
        assert script not in unreported or unreported[script].versions[0] in seen, f"{script}: {seen}"
        assert happens.startswith("**What happens.** "), script
        assert expected.startswith("**Expected.** "), script
        assert f"](../{script}.py)" in reproduce


README_ROW = re.compile(r"^\| ([\w-]+) (\d[^|]*) \| ([^|]+) \| \[\w+\]\(docs/confirmed/(\w+)\.py\) \|$", re.MULTILINE)
PERCENT = re.compile(r"\d+(?= %| to \d+ %)")


def test_readme_page_and_site_agree_about_the_release() -> None:
    pages = {name: page for page, (name, _) in PACKAGES.items()}
    rows = README_ROW.findall(_text("README.md"))
    assert len(rows) == _text("README.md").count("](docs/confirmed/") >= 5
    for name, versions, what, script in rows:
        [bug] = [each for each in bugs(pages[name]) if each.script == script]
        tried, (first, _, last) = PACKAGES[pages[name]][1], versions.partition(" to ")
        said = tried[tried.index(first) : tried.index(last) + 1] if last else tuple(versions.split(", "))
        assert said == bug.versions, f"{script}: the README says {versions}, docs/{pages[name]}.md {bug.versions}"
        assert {*PERCENT.findall(what)} <= {*PERCENT.findall(bug.what)}, f"{script}: {what}"


def test_the_contract_shown_in_the_readme_equals_the_snapshot() -> None:
    said = re.search(r"^\$ rankproof explain (\S+)\n\1\n(.+)$", _text("README.md"), re.MULTILINE)
    assert said
    [row] = re.findall(rf"^\| {said[1]} \|.*$", _text("snapshots/contracts.md"), re.MULTILINE)
    assert f" | {said[2]} | " in row


def test_make_help_has_a_time_for_each_tier() -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    tiers = re.findall(r"^## ([^:]+):", _text("Makefile"), re.MULTILINE)
    assert len(tiers) == 3
    for tier in tiers:
        assert re.search(rf"^{re.escape(tier)}\s+[^\[]*\[[\d.]+ (h|min|s)\b", done.stdout, re.MULTILINE), tier
