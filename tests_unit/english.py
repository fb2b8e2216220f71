"""Plain English, counted: words and turns that a reader stumbles over, by where they stand.

Counted are the pages, the statements of contracts, other docstrings, and what is said in strings. Code is left out.
`english.toml` has the counts; `python -m tests_unit.english` writes it anew, and with words it prints where they stand:
`python -m tests_unit.english behind docs`.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("english.toml")
HEAD = """# How often each turn stands in each area. None may grow.
# `python -m tests_unit.english` writes the counts anew.
"""
_BEGINS = r"(?:^[ \t]*(?:[-*] )?|(?<=[.!?:;|] ))"
BANNED: Mapping[str, tuple[str, re.Pattern[str]]] = {  # name → what to write instead
    "behind": ("after", re.compile(r"(?<![-\w])behind\b(?!-)")),
    "tell": ("report, say, show", re.compile(r"\b(?:tells?|told|telling)\b", re.IGNORECASE)),
    "where": ("if, when", re.compile(rf"{_BEGINS}Where [^.?!]*?,", re.MULTILINE)),
    "alone": ("only, by itself", re.compile(r"(?<![-\w])alone\b(?!-)", re.IGNORECASE)),
    "that-of": ("equals, is the … of", re.compile(r"\b(?:is|are|was|were) (?:that|those) of\b")),
    "what-is": (
        "a noun as the subject",
        re.compile(rf"{_BEGINS}What (?!is\b|are\b)[^.?!]*? (?:is|are)\b(?![^.!]*\?)", re.MULTILINE),
    ),
    "goes-on": ("continues", re.compile(r"\b(?:goes|go|went|gone|going) on\b")),
}
PROPER = re.compile(
    r"\b(?:leav\w*|left)\b[^.|]{0,50}?\bbehind\b|\bbehind an? (?:proxy|firewall)"
    r"|\b(?:tells?|told|telling)\b[^.|]{0,50}?\bapart\b|\btold to\b",
    re.DOTALL,
)
"""What is said in its own sense: to leave behind, a proxy, to tell apart, to be told to do something."""
_WORDS = re.compile(r"[A-Za-z]+ [a-z]+ ?[a-z]*")


def texts(root: Path = ROOT) -> Iterator[tuple[str, Path, int, str]]:
    """Area, file, line and text of everything that is read."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    names = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    for path in (Path(name) for name in names if (root / name).is_file()):
        text = (root / path).read_text(encoding="utf-8")
        if path.suffix == ".py" and path.name not in ("english.py", "test_english.py"):
            yield from ((area, path, line, said) for area, line, said in _strings(ast.parse(text), path))
        elif path.suffix == ".md" and path.parts[0] != "snapshots" and path.name != "CHANGELOG.md":
            yield ("README" if path.name == "README.md" else "docs"), path, 1, _prose(text)


def _prose(text: str) -> str:
    """A page with as many lines, without code."""
    text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "`", text)


def _strings(tree: ast.Module, path: Path) -> Iterator[tuple[str, int, str]]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {each.body[0].value: each for each in ast.walk(tree) if isinstance(each, owners) and _has_one(each)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or not _WORDS.search(node.value):
            continue
        if node not in docstrings:
            yield "messages", node.lineno, node.value
        elif _is_contract(docstrings[node]):
            statement, _, rest = node.value.partition("\n\n")
            yield "statements", node.lineno, statement
            yield "docstrings", node.lineno + statement.count("\n") + 2, rest
        else:
            yield "docstrings", node.lineno, node.value


def _has_one(owner: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(owner.body) and isinstance(owner.body[0], ast.Expr) and isinstance(owner.body[0].value, ast.Constant)


def _is_contract(owner: ast.AST) -> bool:
    names = (each.func for each in getattr(owner, "decorator_list", ()) if isinstance(each, ast.Call))
    return any(isinstance(each, ast.Name) and each.id == "contract" for each in names)


def found(root: Path = ROOT) -> Iterator[tuple[str, str, Path, int, str]]:
    """Turn, area, file, line and the words around it."""
    for area, path, line, text in texts(root):
        proper = [each.span() for each in PROPER.finditer(text)]
        for name, (_, pattern) in BANNED.items():
            for each in pattern.finditer(text):
                if any(begin <= each.start() < end for begin, end in proper):
                    continue
                at = line + text.count("\n", 0, each.start())
                yield name, area, path, at, " ".join(text[max(0, each.start() - 50) : each.end() + 50].split())


@functools.cache
def measured() -> Mapping[str, Counter[str]]:
    """Turn → area → count."""
    counts = {name: Counter[str]() for name in BANNED}
    for name, area, *_ in found():
        counts[name][area] += 1
    return counts


def recorded() -> Mapping[str, Mapping[str, int]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def write() -> None:
    lines = [HEAD.rstrip()]
    for name, areas in measured().items():
        lines += ["", f"[{name}] # {areas.total()} in all"]
        lines += [f"{area} = {areas[area]}" for area in ("README", "docs", "statements", "docstrings", "messages")]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        for name, area, path, line, words in found():
            if {*sys.argv[1:]} <= {name, area, *map(str, path.parents), str(path)}:
                sys.stdout.write(f"{path}:{line}: {words}\n")
    else:
        write()
