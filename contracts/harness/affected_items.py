"""Which items a change of the stack can touch, by the imports of the code that answers. It orders and never
filters: imports in another process are not seen, and of those from strings only what an adapter names."""

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import LAW
from contracts.court import repository
from contracts.court.wording import counted
from contracts.harness.checkout import PACKAGES, ROOT
from contracts.spec import Party, refuse
from contracts.spec.records import Item, Plan


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The files of a repository that a range of commits changed, and the words of their names and of the lines that
    are other lines; `root` is the top of its working tree."""

    of: str
    root: Path
    files: frozenset[Path]
    words: frozenset[str] = frozenset()


def changed(of: str) -> Changed:
    """The output of `git diff OF` in the checkout that is judged, or else in the repository of the working directory.

    Raises:
        Refused: for what git does not take, and outside a repository.
    """

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", os.environ.get(ROOT, "."), *words],
                capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        except OSError as error:
            raise refuse("--changed", of, f"needs git: {error.strerror}", "leave it out") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason"])[0]
            raise refuse("--changed", of, f"git says: {said}", "give a range of commits, such as main..")
        return done.stdout

    root = Path(git("rev-parse", "--show-toplevel").rstrip("\n"))
    plain = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--end-of-options", of, "--")
    names = git("diff", "--name-only", "-z", *plain).split("\0")
    # Tests of the stack name much beside it; a snapshot may lack the content of its largest files.
    said = git("diff", "-U0", *plain, ":(top)*.py", ":(top,exclude)*test*").splitlines()
    lines = (line for line in said if line.startswith(("+", "-")))
    files = frozenset((root / name).resolve() for name in names if name)
    return Changed(of=of, root=root, files=files, words=_words(*lines))


def first(plan: Plan, party: Party, change: Changed, places: Mapping[str, str]) -> tuple[Plan, str]:
    """The plan with those items first that the change can touch, and how many they are, in words: the nearest first,
    and of those the ones whose case, or whose contract's file, is named by words of the change.

    `places` are the files of an earlier record (`question: file:line`), for a stack that answers from another process.
    """
    far: dict[str, int | None] = {}
    for question in sorted(party.offers):
        file, lines = _code(party, question) or (_file(places.get(question, "")), range(0))
        far[question] = None if file is None else _distance(file, lines, _others(party, question), change)

    def distance(item: Item) -> int | None:
        asked = LAW.contracts[item.id].asks if item.id in LAW.contracts else ()
        return min((each for question in asked if (each := far.get(question)) is not None), default=None)

    found = {item: distance(item) for item in plan.items}
    touched = [item for item in plan.items if found[item] is not None]
    rest = tuple(item for item in plan.items if found[item] is None)
    named = {i: len(change.words & _words(LAW.contracts[i.id].check.__module__, i.case)) for i in touched}
    ordered = (*sorted(touched, key=lambda item: (found[item] or 0, -named[item])), *rest)
    files = counted(len(change.files), "file")
    told = f"{change.of}: {files} changed, {len(touched)} of {counted(len(plan.items), 'item')} judged first"
    return replace(plan, items=ordered), told


def _words(*names: str) -> frozenset[str]:
    """The words of names and lines by their first four letters: a router is about routing."""
    return frozenset(word[:4] for name in names for word in re.findall(r"[a-z]+", name))


def _code(party: Party, question: str) -> tuple[Path, range] | None:
    """The file and the lines of the method that answers."""
    method = inspect.unwrap(getattr(party, question))
    if not inspect.ismethod(method):
        return None  # a process of its own answers
    try:
        lines, start = inspect.getsourcelines(method)
    except OSError:
        return None
    return Path(method.__code__.co_filename).resolve(), range(start, start + len(lines))


def _others(party: Party, question: str) -> tuple[range, ...]:
    """The lines of the other questions: what is imported there is not this one's."""
    found = (_code(party, each) for each in party.offers if each != question)
    return tuple(code[1] for code in found if code is not None)


def _file(place: str) -> Path | None:
    return (repository.root() / place.rpartition(":")[0]).resolve() if place else None


def _distance(file: Path, own: range, others: tuple[range, ...], change: Changed) -> int | None:
    """How many imports lie between a method and the nearest file that changed; None where none leads there."""
    seen, level, steps = {file}, [file], 0
    while level:
        if any(each in change.files for each in level):
            return steps
        following: list[Path] = []
        for each in level:
            for line, module in _imports(each, strings=not each.is_relative_to(change.root)):
                foreign = each == file and line not in own and any(line in lines for lines in others)
                for found in () if foreign else _found(module, each, change.root):
                    if found not in seen and (found.is_relative_to(change.root) or found.parent == file.parent):
                        seen.add(found)
                        following.append(found)
        level, steps = following, steps + 1
    return None


@functools.cache
def _imports(file: Path, *, strings: bool) -> tuple[tuple[int, str], ...]:
    """The modules that a file imports, each with its line; relative ones begin with dots. With `strings` also what may
    be the name of one, for an adapter that imports by name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ()
    return tuple(_named(tree, strings=strings))


_DOTTED = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*")


def _named(tree: ast.AST, *, strings: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if strings and isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            yield node.lineno, node.value
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield node.lineno, start
            joined = start if start.endswith(".") else f"{start}."
            yield from ((node.lineno, f"{joined}{alias.name}") for alias in node.names)


@functools.cache
def _found(module: str, importer: Path, root: Path) -> tuple[Path, ...]:
    """The files that a module, and the packages it lies in, may be; nothing is imported to find out."""
    plain = module.lstrip(".")
    up = len(module) - len(plain)
    parts = [part for part in plain.split(".") if part]
    folders = [importer.parents[up - 1]] if 0 < up <= len(importer.parents) else [Path.cwd(), root, root / "src"]
    folders += [] if up else [root / package for package in PACKAGES.values()]
    folders += [] if up else [Path(each) for each in sys.path if each]
    for folder in folders:
        stems = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()]
        if files:
            return tuple(file.resolve() for file in files)
    return ()
