"""The pages that `mkdocs build` draws from this repository: pages outside of docs/, the contracts, and what is known of
packages.

Nothing that is made here is committed, and no page of docs/ is written for the site: links are turned on the way.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads a hook by its path

from contracts.stacks import protocol  # noqa: E402
from website import packages  # noqa: E402

PAGES = {
    "README.md": "index.md",
    "docs/index.md": "documentation.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "contracts/law/releases/CHANGELOG.md": "law-changelog.md",
}
"""File of the repository → page."""
MADE = {"snapshots/contracts.md": "contracts/index.md", "docs/schema": "schema.md"}
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\[[^\]]*\]\([^)]*\)|^#.*$|\b([A-Z]+)-\d+[a-z]*\b", re.MULTILINE)
"""A link, a heading, or else what may be a contract's id."""
ROW = re.compile(r"^\| ([A-Z]+-\w+) \| (.*) \| (\w+) \| (\d*) ?\| (.*?) ?\| (.+) \|$", re.MULTILINE)
API = {
    "A stack, and the tests of a project": (
        "rankproof.pytest_plugin.parametrize_with_contracts", "contracts.spec.party.Party",
        "contracts.spec.errors.Refused", "contracts.spec.errors.NotOffered", "contracts.spec.errors.refuse",
    ),
    "What adapters share": tuple(
        f"contracts.stacks.kit.{name}"
        for name in ("adapter", "links", "tables", "runs", "checkpoints", "worlds", "messages", "dry_runs", "versions")
    ),
}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made, in place of what docs/ has under that name."""
    made = {page: _text(source) for source, page in PAGES.items()} | _contracts() | packages.pages()
    made |= {"website.css": _text("website/website.css"), "api.md": _api()}
    made |= {"schema.md": _schemas(), "schema/rankproof-1.json": protocol.schema_text(), "exit-codes.md": _exit_codes()}
    made |= {f"source/{name}": _text(name) for name in {*_linked()} if _site(name) == f"source/{name}"}
    for name, text in made.items():
        if (there := files.get_file_from_path(name)) is not None:
            files.remove(there)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page whose links lead to where their targets are on the site, without the comments that tests read."""
    at = page.file.src_uri
    source = {name: source for source, name in PAGES.items()}.get(at, f"docs/{at}").removeprefix("docs/source/")
    start = Path(at).parent
    known = () if start.name == "contracts" else {id for id, *_ in ROW.findall(_text("snapshots/contracts.md"))}

    def turned(link: re.Match[str]) -> str:
        return f"]({os.path.relpath(_site(_target(source, link[1])), start)}{link[2] or ''})"

    def linked(id: re.Match[str]) -> str:
        words, _, target = id[0].partition("](")
        if "bugs/" in target:
            return f"{words.replace('_', '_<wbr>')}]({target}"
        where = os.path.relpath(f"contracts/{id[1]}.md", start)
        return f"[{id[0]}]({where}#{id[0]})" if id[0] in known else id[0]

    text = re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)
    return "".join(
        part if odd % 2 else ID.sub(linked, LINK.sub(turned, part)) for odd, part in enumerate(CODE.split(text))
    )


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _target(source: str, link: str) -> str:
    """The file of the repository that a link of another leads to."""
    return os.path.normpath(Path(source).parent / link)


def _site(source: str) -> str:
    """Where a file of the repository is on the site."""
    if source in PAGES or source in MADE:
        return (PAGES | MADE)[source]
    if (script := re.fullmatch(r"docs/confirmed/(\w+)\.py", source)) is not None:
        return f"bugs/{script[1]}.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else f"source/{source}"


def _linked() -> Iterator[str]:
    """The files that pages lead to."""
    for source in [*PAGES, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]:
        for part in CODE.split(_text(source))[::2]:
            yield from (_target(source, link[1]) for link in LINK.finditer(part))


def _contracts() -> dict[str, str]:
    """A page for each family, with a heading and an anchor for each contract, and an index."""
    head, *families = re.split(r"^## ([A-Z]+)$", _text("snapshots/contracts.md"), flags=re.MULTILINE)
    about = dict(re.findall(r"^\| ([A-Z]+) \| \w+ \| (.+) \|$", _text("docs/index.md"), re.MULTILINE))
    tables = dict(zip(families[::2], families[1::2], strict=True))
    index = [head, "| family | what it judges | contracts |", "|---|---|---|"]
    index += [f"| [{name}]({name}.md) | {about[name]} | {len(ROW.findall(text))} |" for name, text in tables.items()]
    made = {"contracts/index.md": "\n".join(index)}
    for name, text in tables.items():
        told = [f"# {name}\n\n{about[name][:1].upper()}{about[name][1:]}. [All families](../contracts/index.md).\n"]
        told += [
            f"## {id} {{ #{id} }}\n\n{statement}\n\n*{tier}*, {state}; {cases or 'no'} cases.\n\n"
            f"<details><summary>{len(mutants.split())} mutants</summary>{mutants}</details>\n"
            for id, statement, tier, cases, mutants, state in ROW.findall(text)
        ]
        made[f"contracts/{name}.md"] = "\n".join(told)
    return made


def _exit_codes() -> str:
    table = re.search(r"^\| exit code .*?\n\n", _text("README.md"), re.MULTILINE | re.DOTALL)
    assert table is not None, "README.md has no table of exit codes"
    return f"# Exit codes\n\nOf every command.\n\n{table[0]}[How a verdict is drawn](gate.md).\n"


def _schemas() -> str:
    told = ["# Schemas\n\nJSON Schema 2020-12, for adapters in other languages and for readers of records.\n"]
    schemas = {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/schema").glob("*.json")
    }
    for name, schema in sorted((schemas | {"rankproof-1.json": protocol.schema()}).items()):
        told += [f"## {name.removesuffix('.json')}\n\n[{name}](schema/{name})\n\n| value | means |\n|---|---|"]
        for each, value in schema["$defs"].items():
            words = value.get("description", "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            told.append(f"| `{each}` | {words} |")
        told.append("")
    return "\n".join(told)


def _api() -> str:
    told = [
        "# Python\n\nBy the docstrings. Questions, and the values in them, are [a page of their own](questions.md).\n"
    ]
    for title, names in API.items():
        told += [f"## {title}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(told)
