"""The code of a module, by file and line: the recorder writes its class, and a reader finds the line of a finding.

A line of the change is named if it stands in the class of the module that differs, or of one that calls it. Without
one it is the line in which that module is called, or, of initial weights, made.
"""

import ast
import functools
import sys
import sysconfig
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.observe.diff import Difference
from contracts.observe.trace import Trace

ROOT = "(root)"
_STANDARD, _SUITE = sysconfig.get_path("stdlib"), str(Path(__file__).parents[1])
_OF_OTHERS = ("site-packages", "dist-packages")
_OF_PARAMETERS = ("initial weights", "gradient", "updated weights", "what is trained", "settings of the optimizer")
Changed = Mapping[str, Sequence[range]]
"""The lines of a change in files of a tree, by their paths in it; a deletion is the line before it."""


def of(modules: Mapping[str, type]) -> dict[str, list[Any]]:
    """The fields of a line of the trace: each module's class as FILE:NAME, or MODULE.NAME of an installed package, and
    the files of Python that were read until now and are not installed."""
    classes = [*dict.fromkeys(modules.values())]
    numbers = {each: number for number, each in enumerate(classes)}
    files = {str(Path(file).resolve()) for each in [*sys.modules] if (file := _own(each))}
    return {"classes": [_told(each) for each in classes], "names": [*modules],
            "of": [numbers[each] for each in modules.values()], "files": sorted(files)}  # fmt: skip


def _told(of: type) -> str:
    file = _own(of.__module__)
    return f"{Path(file).resolve()}:{of.__qualname__}" if file else f"{of.__module__}.{of.__qualname__}"


def _own(module: str) -> str:
    """The file of a module; empty if it is installed, or of this suite."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = file.startswith((_STANDARD, _SUITE)) or any(each in file for each in _OF_OTHERS)
    return "" if installed or not file.endswith(".py") else file


def files(trace: Trace) -> set[Path]:
    """The files of Python that the run has read, and that are not installed."""
    return {Path(each) for rank in trace.ranks for line in rank.of("code") for each in line["files"]}


def classes(trace: Trace) -> dict[str, str]:
    """The class of each module, by its name."""
    return {name: line["classes"][number] for rank in trace.ranks for line in rank.of("code")
            for name, number in zip(line["names"], line["of"], strict=True)
            if 0 <= number < len(line["classes"])}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of code.

    Args:
        file: from the root of the tree.
        why: in words what stands there.
    """

    file: str
    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text} ({self.why})"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The code of one side: the root of its files, the class of each module, and what the other side has otherwise."""

    root: Path
    classes: Mapping[str, str]
    files: Set[Path]
    changed: Changed

    def place(self, difference: Difference) -> Place | None:
        """Where to look for the reason of a difference; None if nothing of the model's code stands in the tree."""
        name = module_of(difference, self.classes)
        chain = [*_outwards(name)]
        changed = (self._changed(each) for each in chain)
        found = next((each for each in changed if each), None)
        if found or sum(map(len, self.changed.values())) == 1:
            return found or next(self.elsewhere(), None)
        making = difference.phase in ("initial weights", "what is trained")
        return next((place for each in chain if (place := self._used(each, name, making=making))), None)

    def elsewhere(self) -> Iterator[Place]:
        """The changed places, a place for each range of lines: of what the run has read of Python first."""
        for file in sorted(self.changed, key=lambda each: (self.root / each not in self.files, each)):
            for lines in self.changed[file]:
                yield self._at(file, lines.start, "changed")

    def _changed(self, module: str) -> Place | None:
        """The first line of the change that stands in the class of a module."""
        file, node = self._class(module)
        if node is None:
            return None
        own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        both = (range(max(each.start, own.start), min(each.stop, own.stop)) for each in self.changed.get(file, ()))
        line = min((each.start for each in both if each), default=0)
        return self._at(file, line, f"changed, in {node.name}, the class of {module}") if line else None

    def _used(self, module: str, name: str, *, making: bool) -> Place | None:
        """The line in which a module's class calls the part that leads to `name`, or its `forward`."""
        file, node = self._class(module)
        if node is None:
            return None
        part = "" if name == module else name.removeprefix(f"{module}.").partition(".")[0]
        inside = [
            each for each in node.body if isinstance(each, ast.FunctionDef) and (each.name == "__init__") is making
        ]
        uses = [
            each.lineno for method in inside for each in ast.walk(method)
            if isinstance(each, ast.Attribute) and each.attr == part and isinstance(each.ctx, ast.Store) is making
        ]  # fmt: skip
        if uses:
            return self._at(file, min(uses), f"{'makes' if making else 'calls'} {name}")
        own = next((each for each in inside if each.name in ("__init__", "forward")), None)
        return self._at(file, own.lineno, f"{own.name} of {module}") if own else None

    def _class(self, module: str) -> tuple[str, ast.ClassDef | None]:
        path, _, name = self.classes.get(module, "").rpartition(":")
        if not path or not Path(path).is_relative_to(self.root):
            return "", None
        return str(Path(path).relative_to(self.root)), _defined(Path(path), name)

    def _at(self, file: str, line: int, why: str) -> Place:
        lines = _text(self.root / file).splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return Place(file=file, line=line, text=text[:160], why=why)


def module_of(difference: Difference, modules: Container[str]) -> str:
    """The module that differs, or that has the parameter which does."""
    name = difference.name
    if difference.phase in _OF_PARAMETERS and name not in modules:
        name = name.rpartition(".")[0] or ROOT
    return name


def _outwards(name: str) -> Iterator[str]:
    """A module and those that hold it, the nearest first."""
    while name and name != ROOT:
        yield name
        name = name.rpartition(".")[0]
    yield ROOT


@functools.lru_cache(maxsize=256)
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


@functools.lru_cache(maxsize=1024)
def _defined(file: Path, qualified: str) -> ast.ClassDef | None:
    """The definition of a class, by its qualified name."""
    try:
        body: Sequence[ast.AST] = ast.parse(_text(file)).body
    except (SyntaxError, ValueError):
        return None
    found: ast.ClassDef | None = None
    for part in qualified.replace(".<locals>", "").split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        inside = (each for top in body for each in ast.walk(top))
        node = next((each for each in inside if isinstance(each, kinds) and each.name == part), None)
        if node is None:
            return None
        found, body = node if isinstance(node, ast.ClassDef) else None, node.body
    return found
