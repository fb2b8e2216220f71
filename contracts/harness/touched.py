"""Which items a change of the stack can touch, by the imports behind the code that answers. It orders and never
filters: imports that are made from strings, or in another process, are not seen."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import LAW
from contracts.court import repository
from contracts.court.telling import counted
from contracts.harness.checkout import ROOT
from contracts.spec.errors import refuse
from contracts.spec.records import Item, Plan
from contracts.spec.stack import Party


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The files of a repository that a range of commits changed; `root` is the top of its working tree."""

    of: str
    root: Path
    files: frozenset[Path]


def changed(of: str) -> Changed:
    """What `git diff OF` says in the checkout that is judged, or else in the repository of the working directory.

    Raises:
        Refused: for what git does not take, and outside a repository.
    """

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", os.environ.get(ROOT, "."), *words], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise refuse("--changed", of, f"needs git: {error.strerror}", "leave it out") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason"])[0]
            raise refuse("--changed", of, f"git says: {said}", "give a range of commits, such as main..")
        return done.stdout

    root = Path(git("rev-parse", "--show-toplevel").rstrip("\n"))
    names = git("diff", "--name-only", "-z", "--no-renames", "--end-of-options", of, "--").split("\0")
    return Changed(of=of, root=root, files=frozenset((root / name).resolve() for name in names if name))


def first(plan: Plan, party: Party, change: Changed, places: Mapping[str, str]) -> tuple[Plan, str]:
    """The plan with those items first that the change can touch, nearest first, and how many they are, in words.

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
    ordered = (*sorted(touched, key=lambda item: found[item] or 0), *rest)
    files = counted(len(change.files), "file")
    words = f"{change.of}: {files} changed, {len(touched)} of {counted(len(plan.items), 'item')} judged first"
    return replace(plan, items=ordered), words


def _code(party: Party, question: str) -> tuple[Path, range] | None:
    """The file and the lines of the method that answers."""
    method = inspect.unwrap(getattr(type(party), question, None) or changed)
    if method is changed or not hasattr(method, "__code__"):
        return None
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
            for line, module in _imports(each):
                foreign = each == file and line not in own and any(line in lines for lines in others)
                for found in () if foreign else _found(module, each, change.root):
                    if found not in seen and (found.is_relative_to(change.root) or found.parent == file.parent):
                        seen.add(found)
                        following.append(found)
        level, steps = following, steps + 1
    return None


@functools.cache
def _imports(file: Path) -> tuple[tuple[int, str], ...]:
    """The modules that a file imports, each with its line; relative ones begin with dots."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ()
    return tuple(_named(tree))


def _named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
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
    folders += [] if up else [Path(each) for each in sys.path if each]
    for folder in folders:
        stems = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        files = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()]
        if files:
            return tuple(file.resolve() for file in files)
    return ()
