"""Pages about released packages: the matrix of versions and families, a page for each bug, badges."""

import ast
from collections import Counter
from collections.abc import Iterator

from contracts.court.badge import svg
from website.known import PACKAGES, ROOT, Bug, bugs

COUNTS = ("planned", "holds", "violated", "deviates")
HEAD = """# What is known of released packages

A number counts what a user should know of a version in a family of [contracts](contracts/index.md), and leads to it:
each has a script of at most 40 lines, and what to do. **✓**: judged, and all holds. **·**: not judged, or the package
does not have it. All was asked on CPUs; how much of each package was asked is [below](#how-much-was-asked).

"""
Known = dict[str, tuple[Bug, ...]]
Counts = dict[str, Counter[str]]


def pages() -> dict[str, str]:
    """Page → text, and badge → picture."""
    known, records = {package: bugs(package) for package in PACKAGES}, dict(_records())
    made = {"packages.md": HEAD + _matrix(known, records) + _trend(known) + _asked(records)}
    for path in sorted((ROOT / "docs/confirmed").glob("*.py")):
        made[f"bugs/{path.stem}.md"] = f"# {_title(path.stem)}\n\n{_script(path.stem)}"
    for package, rows in known.items():
        made[f"bugs/{package}.md"] = _by_family(package, rows)
        made |= {f"bugs/{bug.script}.md": _bug(bug) for bug in rows}
    for (package, version), counts in records.items():
        all_ = sum(counts.values(), Counter())
        words = f"{all_['holds']} hold, {all_['deviates']} deviate, {all_['violated']} violated"
        colour = "red" if all_["violated"] else "yellow" if all_["deviates"] else "brightgreen"
        made[_badge(package, version)] = svg(f"{package} {version}", words, colour)
    return made


def _records() -> Iterator[tuple[tuple[str, str], Counts]]:
    """Counts by family, of each version of which they are stored: what one process and what four ranks judged."""
    for path in sorted((ROOT / "snapshots/coverage").glob("*.txt")):
        package, _, version = path.stem.rpartition("-")
        _, head, *lines = path.read_text(encoding="utf-8").splitlines()
        counts: Counts = {}
        for line in lines:
            if (family := line.partition(" ")[0]).isupper():
                ends = {name: head.index(name) + len(name) for name in COUNTS}
                row = {name: int(line[end - len(name) : end].strip() or 0) for name, end in ends.items()}
                counts.setdefault(family, Counter()).update(row)
        yield (package, version), counts


def _families(bug: Bug) -> list[str]:
    return sorted({id.partition("-")[0] for id in bug.contracts})


def _matrix(known: Known, records: dict[tuple[str, str], Counts]) -> str:
    judged = {family for counts in records.values() for family, each in counts.items() if each["holds"]}
    columns = sorted(judged | {family for rows in known.values() for bug in rows for family in _families(bug)})
    heads = "".join(f'<th><a href="../contracts/{each}/">{each}</a></th>' for each in columns)
    told = [f'<table class="matrix"><thead><tr><th>package</th>{heads}</tr></thead><tbody>']
    for package, (name, versions) in PACKAGES.items():
        for version in reversed(versions):
            here = [bug for bug in known[package] if version in bug.versions]
            counts = records.get((package, version), {})
            cells = [
                _cell(family, [bug for bug in here if family in _families(bug)], counts.get(family))
                for family in columns
            ]
            told.append(f"<tr><th>{name} {version}</th>{''.join(cells)}</tr>")
    return "\n".join([*told, "</tbody></table>\n\n"])


def _cell(family: str, here: list[Bug], counts: Counter[str] | None) -> str:
    told = f"{family}: {counts['holds']} cases hold, {counts['deviates']} deviate" if counts else family
    if here:
        page = here[0].script + "/" if len(here) == 1 else f"{here[0].package}/#{family.lower()}"
        return f'<td class="deviates" title="{told}"><a href="../bugs/{page}">{len(here)}</a></td>'
    if counts and counts["holds"]:
        return f'<td class="holds" title="{told}">✓</td>'
    return f'<td title="{told}: not judged">·</td>'


def _trend(known: Known) -> str:
    """What each version brought and mended."""
    told = ["## From version to version\n\n| version | known | new | mended |\n|---|---|---|---|"]
    for package, (name, versions) in PACKAGES.items():
        before: set[str] = set()
        for version in versions:
            here = {bug.script for bug in known[package] if version in bug.versions}
            new = _links(here - before) if before else "the oldest that was tried"
            bar = f'<span class="bar" style="width: {len(here) / 8}em"></span> {len(here)}'
            told.append(f"| {name} {version} | {bar} | {new or 'none'} | {_links(before - here) or 'none'} |")
            before = here
    return (
        "\n".join(told)
        + "\n\nNew is also what could not be asked before: 0.16.1 of Megatron-Core has no training script.\n\n"
    )


def _links(scripts: set[str]) -> str:
    return ", ".join(f"[{script.partition('_')[2].replace('_', ' ')}](bugs/{script}.md)" for script in sorted(scripts))


def _asked(records: dict[tuple[str, str], Counts]) -> str:
    told = ["## How much was asked\n\nCases of one process and of four ranks, of the newest version of each package.\n"]
    for (package, version), counts in records.items():
        all_ = sum(counts.values(), Counter())
        picture = (
            f"![{package} {version}: {all_['holds']} hold, {all_['deviates']} deviate]({_badge(package, version)})"
        )
        told.append(f"{picture}, of {all_['planned']} planned\n")
    return (
        "\n".join(told)
        + "\nThe rest is not offered: each with its reason in [the pages of the packages](documentation.md).\n"
    )


def _badge(package: str, version: str) -> str:
    return f"badges/{package}-{version}.svg"


def _by_family(package: str, rows: tuple[Bug, ...]) -> str:
    told = [f"# {PACKAGES[package][0]}, by family\n\n[By version](../{package}.md), [all packages](../packages.md).\n"]
    for family in sorted({family for bug in rows for family in _families(bug)}):
        told.append(f"## {family}\n\n| versions | what happens | what to do | |\n|---|---|---|---|")
        told += [
            f"| {', '.join(bug.versions)} | {bug.what} | {bug.remedy} | [script]({bug.script}.md) |"
            for bug in rows if family in _families(bug)
        ]  # fmt: skip
        told.append("")
    return "\n".join(told)


def _bug(bug: Bug) -> str:
    return f"""# {_title(bug.script)}

{bug.what[0].upper()}{bug.what[1:]}.

| versions | {", ".join(bug.versions)} |
|---|---|
| what to do | {bug.remedy} |
| upstream | {bug.upstream or "no report is known"} |
| contracts | {", ".join(bug.contracts) or "none"} |

{_script(bug.script)}"""


def _title(script: str) -> str:
    package, _, name = script.partition("_")
    return f"{PACKAGES[package][0]}: {name.replace('_', ' ')}"


def _script(script: str) -> str:
    text = (ROOT / f"docs/confirmed/{script}.py").read_text(encoding="utf-8")
    told = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    return f'{told}\n\n```python title="{script}.py"\n{text}```\n'
