"""The size of the repository by area: statements and lines of Python, lines of what is generated, lines of prose.

`python -m tests_unit.size` writes `size.toml` anew. Statements are counted beside lines, so that neither packed lines
nor dropped docstrings make anything smaller.
"""

import ast
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("size.toml")
HEAD = """# Statements and lines by area. A test refuses a sum that grew. If it must grow, write this file anew with
# `python -m tests_unit.size` and give the reason in the commit. If it became smaller, write it anew too.
"""
Sizes = Mapping[str, Mapping[str, int]]
"""Kind → area → count."""


def measured(root: Path = ROOT) -> Sizes:
    """The sizes of the files that git has or would add."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in ("statements", "python", "generated", "prose")}
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    for path in (Path(name) for name in names if (root / name).is_file()):
        if kind := _kind(path):
            text = (root / path).read_bytes()
            found[kind][_area(path)] += text.count(b"\n")
            if kind == "python":
                found["statements"][_area(path)] += _statements(ast.parse(text).body)
    return found


def _kind(path: Path) -> str:
    if path.suffix == ".json" or path.parts[0] == "snapshots":
        return "generated"
    return {".py": "python", ".md": "prose"}.get(path.suffix, "")


def _area(path: Path) -> str:
    inside = 3 if path.parts[:2] == ("contracts", "stacks") else 2 if path.parts[0] == "contracts" else 1
    return "/".join(path.parts[: min(inside, len(path.parts) - 1)]) or "."


def _statements(body: Sequence[ast.stmt]) -> int:
    count = len(body)
    for statement in body:
        for name in ("body", "orelse", "finalbody"):
            count += _statements(getattr(statement, name, ()))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            count += _statements(part.body)
    return count


def recorded() -> Sizes:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def grown(before: Sizes, now: Sizes) -> list[str]:
    """The kinds whose sum has grown, each with the areas that grew."""
    found = []
    for kind in now:
        more = sum(now[kind].values()) - sum(before.get(kind, {}).values())
        if more > 0:
            areas = {area: count - before.get(kind, {}).get(area, 0) for area, count in now[kind].items()}
            told = ", ".join(f"{area} +{by}" for area, by in sorted(areas.items()) if by > 0)
            found.append(f"{kind}: {more} more than {FILE.name} has ({told})")
    return found


def write() -> None:
    lines = [HEAD.rstrip()]
    for kind, areas in measured().items():
        lines += ["", f"[{kind}] # {sum(areas.values())} in all"]
        lines += [f'"{each}" = {areas[each]}' for each in sorted(areas)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
