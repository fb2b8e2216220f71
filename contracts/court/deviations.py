"""The deviations file: the violations that a stack's owner declares, with a reason, an owner and an expiry date.

[[deviation]]
id = "BLK-03j"
case = "1027-tokens-*"       # shell-style selector over case names
says = "the output differs: L2 error # over #"   # words of the violation; # is any number, * any text
tensors = ["layers.*.mixer.wq"]  # where tensors are compared by name: those that may differ
device = "cpu"               # or "cuda", if it is only about that device
versions = ["0.18.*"]        # if it is only about these versions of the stack
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

import datetime
import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from contracts.spec import Refusals, Refused
from contracts.spec.codec import decode
from contracts.spec.records import Deviation, Item, Violation

_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)"
_ALONE = re.compile(rf"(?<![\w.#]){_NUMBER}(?!\w)")
_WILD = {"#": rf"(?:{_NUMBER}|\#)"}
LONGEST = datetime.timedelta(days=366)  # an entry that nobody looks at again is no declaration for a time
_LETTERS = 2  # at least, in the words that a deviation forgives: wildcards alone would forgive everything


def covers(deviation: Deviation, item: Item) -> bool:
    """Whether a deviation is about an item."""
    return deviation.id == item.id and fnmatchcase(item.case, deviation.case)


def forgives(deviation: Deviation, violation: Violation) -> bool:
    """Whether a deviation that covers an item forgives one thing that is wrong there.

    Its words must be among those of the violation. If a tensor differs, the deviation must name the tensor; one that
    names tensors forgives nothing else.
    """
    if not deviation.says or not _pattern(deviation.says).search(violation.words):
        return False
    if not violation.tensor:
        return not deviation.tensors
    return any(fnmatchcase(violation.tensor, each) for each in deviation.tensors)


def masked(words: str) -> str:
    """Words with `#` for every number that is a word of its own; a digit within a name stays."""
    return _ALONE.sub("#", words)


@functools.cache
def _pattern(says: str) -> re.Pattern[str]:
    """The words as a pattern. The text after a `*` is matched at its first place, and no later one is tried: four
    of them took minutes on words that do not fit."""
    first, *rest = ("".join(_WILD.get(each, re.escape(each)) for each in part) for part in says.split("*"))
    return re.compile(first + "".join(rf"(?>[^\n]*?{part})" for part in rest))


def load(path: Path) -> tuple[Deviation, ...]:
    """Read a deviations file.

    Raises:
        Refused: when it cannot be read, is not TOML, or an entry lacks a field, has an unknown one or an empty one;
            every fault at once, each with the file. Entries that name no words are one fault, with the command that
            finds them.
    """
    found = Refusals()
    declared = _declared(path, found)
    silent = [f"{each.id}[{each.case}]" for each in declared if not each.says]
    if silent:
        named = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
        found.add(
            "deviations",
            str(path),
            f"{named} do not say what they forgive: `says` is missing, the words of the violation",
            "run `rankproof check` without this file, then `rankproof deviations REPORT --fill` with it writes them in",
        )
    found.raise_any()
    return tuple(declared)


def read(path: Path, *, taken: bool = True) -> tuple[Deviation, ...]:
    """Read a deviations file whose entries may still lack their words.

    Args:
        taken: whether the entries that it takes from other files are among them, before its own.

    Raises:
        Refused: as `load`, but for missing words.
    """
    found = Refusals()
    declared = _declared(path, found, taken=taken)
    found.raise_any()
    return tuple(declared)


def _declared(path: Path, found: Refusals, *, taken: bool = True, for_files: tuple[Path, ...] = ()) -> list[Deviation]:
    """The entries of a file that are as they should be; `for_files` take entries from this one. What is wrong with it
    and with the others is `found`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        found.add("deviations", str(path), f"cannot be read: {error.strerror}", "give the path of a TOML file")
        return []
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of too many digits, too deep
        found.add("deviations", str(path), f"is not TOML: {error}", "see docs/deviations/")
        return []
    tables = {name: data.pop(name, []) for name in ("taken", "deviation")}
    for key in data:
        found.add(f"{path}: {key}", data[key], "is not a table of this file", "write [[deviation]] and [[taken]] only")
    for name, each in tables.items():
        if not isinstance(each, list) or not all(isinstance(entry, dict) for entry in each):
            found.add(f"{path}: {name}", each, "is no list of tables", f"write [[{name}]], with double brackets")
            tables[name] = []
    declared: list[Deviation] = []
    for number, entry in enumerate(tables["taken"] if taken else (), start=1):
        declared += _taken(entry, f"{path}: taken {number}", (*for_files, path), found)
    for number, entry in enumerate(tables["deviation"], start=1):
        declared += _entry(entry, f"{path}: deviation {number}", found)
    return declared


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """Entries of another file, by id and case; `*` for all of them."""

    file: str
    cases: tuple[str, ...]


def _taken(entry: object, name: str, files: tuple[Path, ...], found: Refusals) -> list[Deviation]:
    """The entries that the last of these files takes."""
    try:
        taken = decode(_Taken, entry, name=name)
    except Refused as refused:
        found.extend(refused)
        return []
    other = files[-1].parent / taken.file
    if other.resolve() in [each.resolve() for each in files]:
        found.add(f"{name}.file", taken.file, "takes entries from itself", "name a file that has them")
        return []
    wrong = Refusals()
    there = _declared(other, wrong, for_files=files)
    if not wrong and taken.cases != ("*",):
        for case in taken.cases:
            known = any(case == f"{each.id}[{each.case}]" for each in there)
            wrong.unless(
                known, f"{name}.cases", case, f"is no entry of {other}", "write id and case as they stand there"
            )
    found.merge(wrong)
    return [each for each in there if taken.cases == ("*",) or f"{each.id}[{each.case}]" in taken.cases]


def _entry(entry: dict[str, object], name: str, found: Refusals) -> list[Deviation]:
    """The deviation that a table declares; none where something is wrong with it."""
    expires = entry.get("expires")
    if isinstance(expires, datetime.date) and not isinstance(expires, datetime.datetime):
        entry = {**entry, "expires": expires.isoformat()}
    wrong, declared = _empty(entry, name), []
    try:
        declared = [decode(Deviation, entry, name=name)]
    except Refused as refused:
        wrong.extend(refused)
    found.merge(wrong)
    return [] if wrong else declared


def _empty(entry: dict[str, object], name: str) -> Refusals:
    """The fields of an entry that are of their type and say nothing."""
    found = Refusals()
    texts = {field: value for field, value in entry.items() if isinstance(value, str)}
    for field in ("id", "case", "reason", "issue", "owner"):
        given = texts.get(field, "given")
        found.unless(
            bool(given.strip()), f"{name}.{field}", given, "is empty", "fill it in, so that a reader can judge"
        )
    told = re.search(rf"[^\W\d_]{{{_LETTERS}}}", texts.get("says", "no words yet"))
    found.unless(bool(told), f"{name}.says", texts.get("says"), "has no word in it, so anything would match",
                 "give words of the violation")  # fmt: skip
    for field, kind in (("tensors", "name"), ("versions", "version")):
        named = entry.get(field)
        for _ in [each for each in named if each == ""] if isinstance(named, list) else ():
            found.add(f"{name}.{field}", "", f"is no {kind}", f"give a {kind}, or a selector over them")
    if "expires" in texts:
        latest = datetime.datetime.now(datetime.UTC).date() + LONGEST
        try:
            far = datetime.date.fromisoformat(texts["expires"]) > latest
            found.unless(not far, f"{name}.expires", texts["expires"], f"is more than a year ahead, after {latest}",
                         "give an earlier day, and look at the fault again before it")  # fmt: skip
        except ValueError:
            found.add(f"{name}.expires", texts["expires"], "is not a date", "write YYYY-MM-DD")
    return found


def unused(deviation: Deviation, violations: Iterable[Violation]) -> list[str]:
    """The selectors of a deviation that name no tensor among these violations."""
    names = {violation.tensor for violation in violations if violation.tensor}
    return [each for each in deviation.tensors if not any(fnmatchcase(name, each) for name in names)]
