"""The families in reading order, and how their files are found and imported.

A family is a folder below `contracts/law`, or below `contracts/bringup/law` if it is about a launch or a node; MEM has
one in both. It has the checks of a subject in SUBJECT.py, and in SUBJECT_bugs.py its
mutants. Every file there belongs to the law, and there is no other list of them. Ids are literals, so that the text of
a file says which contracts it has, and judging PAT-01 imports only the files of PAT-01.
"""

import functools
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import contracts
from contracts.contract import LAW

FAMILIES: Mapping[str, str] = {
    "PAT": "pattern", "NAME": "names", "REC": "recipe", "ARGV": "argv", "ENV": "environment",
    "TOPO": "topology", "PREF": "preflight", "MANI": "manifest", "INST": "install",
    "STOR": "storage", "MEM": "memory", "RCPT": "receipts", "CMP": "comparison", "GOOD": "goodput",
    "KRN": "kernels", "BLK": "blocks", "MOE": "moe", "OPT": "optimizer", "PAR": "parallel",
    "PREC": "precision", "COMP": "compile", "CKPT": "checkpoint", "OBS": "observe",
    "TRAF": "traffic",
}  # fmt: skip
"""In reading order: the beginning of its ids → its folder."""
_ROOT = Path(contracts.__file__).parents[1]
_TREES = ("contracts/law", "contracts/bringup/law")
_CHECKED = re.compile(r'^(?:@contract|untested)\(\s*"([A-Z]+-\d\d[a-z]?)"', re.MULTILINE)
_NAMED = re.compile(r"[\"']([A-Z]+-\d\d[a-z]?)[\"'\[]")


@functools.cache
def checks() -> Mapping[str, tuple[str, ...]]:
    """Module → the ids of its contracts; in a family the module with the first id comes first."""
    return {name: ids for name, ids in _files(_CHECKED).items() if not name.endswith("_bugs")}


@functools.cache
def mutants() -> Mapping[str, tuple[str, ...]]:
    """Module → the ids that it names: the contracts that its mutants violate."""
    return {name: ids for name, ids in _files(_NAMED).items() if name.endswith("_bugs")}


def _files(pattern: re.Pattern[str]) -> Mapping[str, tuple[str, ...]]:
    found = {}
    for family in FAMILIES.values():
        paths = [path for tree in _TREES for path in (_ROOT / tree / family).glob("[a-z]*.py")]
        files = {path: pattern.findall(path.read_text(encoding="utf-8")) for path in paths}
        for path in sorted(files, key=lambda each: (min(files[each], default=""), each.stem)):
            name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
            found[name] = tuple(dict.fromkeys(files[path]))
    return found


@functools.cache
def ids() -> tuple[str, ...]:
    """Every id of the law in reading order. Nothing is imported for it."""
    return tuple(id for each in checks().values() for id in each)


def read_checks(*beginnings: str) -> None:
    """Import the contracts whose ids begin so, in either case; every contract if no beginning is given."""
    begin = tuple(each.lower() for each in beginnings) or ("",)
    chosen = {id for id in ids() if id.lower().startswith(begin)}
    _import(module for module, there in checks().items() if chosen & {*there})
    LAW.arrange(ids())


def read_mutants(of: Iterable[str] | None = None) -> None:
    """Import the mutants of some contracts, or of all; without torch, those that do without it."""
    wanted = {*ids()} if of is None else {*of}
    _import(module for module, named in mutants().items() if wanted & {*named})
    LAW.arrange(ids())


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if importlib.util.find_spec("torch") is not None:
                raise
