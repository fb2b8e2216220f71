"""The deviations file: the violations that a stack's owner declares, with a reason, an owner and an expiry date.

[[deviation]]
id = "BLK-03j"
case = "1027-tokens-*"       # shell-style selector over case names
says = "the output differs: L2 error # over #"   # words of the violation; # is any number, * any text
tensors = ["layers.*.mixer.wq"]  # where tensors are compared by name: those that may differ
device = "cpu"               # or "cuda", where it is about that device alone
versions = ["0.18.*"]        # where it is about these versions of the stack alone
reason = "angles of rope are float32"
issue = "https://…"
owner = "numerics team"
expires = 2027-02-28

A deviation forgives what it says and nothing else of its case. `rankproof deviations` writes `says` and `tensors` from
a record. Two configurations of one stack share entries:

[[taken]]
file = "megatron.toml"       # beside this one
cases = ["PAR-01e[tp2-sp]"]  # id and case, as that file has them
"""

from __future__ import annotations

import datetime
import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from contracts.spec.codec import decode
from contracts.spec.errors import Refusals, Refused, refuse
from contracts.spec.records import Deviation, Item, Violation

_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)"
_ALONE = re.compile(rf"(?<![\w.#]){_NUMBER}(?!\w)")
_WILD = {"#": rf"(?:{_NUMBER}|\#)"}
_LETTERS = 2  # at least, in the words that a deviation forgives: wildcards alone would forgive everything


def covers(deviation: Deviation, item: Item) -> bool:
    """Whether a deviation is about an item."""
    return deviation.id == item.id and fnmatchcase(item.case, deviation.case)


def forgives(deviation: Deviation, violation: Violation) -> bool:
    """Whether a deviation that covers an item forgives one thing that is wrong there.

    Its words must be among those of the violation. Where a tensor differs, the deviation must name the tensor; one that
    names tensors forgives nothing else.
    """
    if not deviation.says or not _pattern(deviation.says).search(violation.words):
        return False
    if not violation.tensor:
        return not deviation.tensors
    return any(fnmatchcase(violation.tensor, each) for each in deviation.tensors)


def masked(words: str) -> str:
    """Words with `#` for every number that stands alone; a digit within a name stays."""
    return _ALONE.sub("#", words)


@functools.cache
def _pattern(says: str) -> re.Pattern[str]:
    """The words as a pattern. What stands after a `*` is taken where it comes first, and no later place is tried: four
    of them took minutes on words that do not fit."""
    first, *rest = ("".join(_WILD.get(each, re.escape(each)) for each in part) for part in says.split("*"))
    return re.compile(first + "".join(rf"(?>[^\n]*?{part})" for part in rest))


def load(path: Path) -> tuple[Deviation, ...]:
    """Read a deviations file.

    Raises:
        Refused: when it cannot be read, is not TOML, or an entry lacks a field, has an unknown one or an empty one;
            every fault at once. Entries that name no words are one fault, with the command that finds them.
    """
    declared = read(path)
    found = Refusals()
    silent = [f"{each.id}[{each.case}]" for each in declared if not each.says]
    if silent:
        named = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
        found.add(
            "deviations",
            str(path),
            f"{named} say nothing of what they forgive: `says` is missing, the words of the violation",
            "run `rankproof check` without this file, then `rankproof deviations REPORT --fill` with it writes them in",
        )
    found.raise_any()
    return declared


def read(path: Path, *, taken: bool = True, for_files: tuple[Path, ...] = ()) -> tuple[Deviation, ...]:
    """Read a deviations file whose entries may still lack their words.

    Args:
        taken: whether the entries that it takes from other files are among them, before its own.
        for_files: the files that take entries from this one, if any.

    Raises:
        Refused: as `load`, but for missing words.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(
            "deviations", str(path), f"cannot be read: {error.strerror}", "give the path of a TOML file"
        ) from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of too many digits, too deep
        raise refuse("deviations", str(path), f"is not TOML: {error}", "see docs/deviations/") from None
    entries, others = data.pop("deviation", []), data.pop("taken", [])
    found = Refusals()
    for key in data:
        found.add("deviations", key, "is not a table of this file", "write [[deviation]] and [[taken]] tables only")
    for name, tables in (("deviation", entries), ("taken", others)):
        if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
            raise refuse("deviations", name, "is no list of tables", f"write [[{name}]], with double brackets")
    declared = []
    for number, entry in enumerate(others if taken else (), start=1):
        try:
            declared += _taken(decode(_Taken, entry, name=f"taken {number}"), f"taken {number}", (*for_files, path))
        except Refused as refused:
            found.extend(refused)
    for number, entry in enumerate(entries, start=1):
        try:
            declared.append(_entry(entry, f"deviation {number}"))
        except Refused as refused:
            found.extend(refused)
    found.raise_any()
    return tuple(declared)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """Entries of another file, by id and case; `*` for all of them."""

    file: str
    cases: tuple[str, ...]


def _taken(taken: _Taken, name: str, files: tuple[Path, ...]) -> list[Deviation]:
    """The entries that the last of these files takes."""
    other = files[-1].parent / taken.file
    if other.resolve() in [each.resolve() for each in files]:
        raise refuse(f"{name}.file", taken.file, "takes entries from itself", "name a file that has them")
    there = read(other, for_files=files)
    if taken.cases == ("*",):
        return list(there)
    found = Refusals()
    for case in taken.cases:
        known = any(case == f"{each.id}[{each.case}]" for each in there)
        found.unless(known, f"{name}.cases", case, f"is no entry of {other}", "write id and case as they stand there")
    found.raise_any()
    return [each for each in there if f"{each.id}[{each.case}]" in taken.cases]


def _entry(entry: object, name: str) -> Deviation:
    if not isinstance(entry, dict):
        raise refuse(name, entry, "is not a table", "write [[deviation]] tables only")
    expires = entry.get("expires")
    if isinstance(expires, datetime.date) and not isinstance(expires, datetime.datetime):
        entry = {**entry, "expires": expires.isoformat()}
    deviation = decode(Deviation, entry, name=name)
    found = Refusals()
    for field in ("id", "case", "reason", "issue", "owner"):
        value = getattr(deviation, field)
        found.unless(
            bool(value.strip()), f"{name}.{field}", value, "is empty", "say it; a reader must be able to judge"
        )
    if "says" in entry:
        told = re.search(rf"[^\W\d_]{{{_LETTERS}}}", deviation.says)
        found.unless(bool(told), f"{name}.says", deviation.says, "has no word in it, so that anything would match",
                     "give words of the violation")  # fmt: skip
    for each in deviation.tensors:
        found.unless(bool(each), f"{name}.tensors", each, "is no name", "name a tensor, or a selector over names")
    for each in deviation.versions:
        found.unless(bool(each), f"{name}.versions", each, "is no version", "name a version, or a selector over them")
    try:
        datetime.date.fromisoformat(deviation.expires)
    except ValueError:
        found.add(f"{name}.expires", deviation.expires, "is not a date", "write YYYY-MM-DD")
    found.raise_any()
    return deviation


def unused(deviation: Deviation, violations: Iterable[Violation]) -> list[str]:
    """The selectors of a deviation that name no tensor among these violations."""
    names = {violation.tensor for violation in violations if violation.tensor}
    return [each for each in deviation.tensors if not any(fnmatchcase(name, each) for name in names)]
