"""Which name of one run is which of another: a wrapper, a compiler or an author calls the same tensor otherwise.

Names that both runs have stay. Of the others a pair is what is the same without the parts that wrappers add, or is tied
to it, or ends with it and has its shape, or has its shape, its norm when training begins and its place among those.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from contracts.observe.merged import Merged, Whole
from contracts.observe.names import WRAPPERS
from contracts.observe.trace import Line, Trace
from contracts.spec.errors import Refusals

ADDED = WRAPPERS | {"module", "_forward_module"}
"""Parts of a name that wrappers add: DDP and its like, those of Lightning's Fabric and DeepSpeed."""
_NAMED = ("names", "trainable", "frozen", "evaluating")
_ROOT = "(root)"


def renamed(trace: Trace, pairs: Sequence[tuple[str, str]], reference: Trace) -> Trace:
    """A trace with the reference's names, by pairs of a name or a beginning of names in the reference and in the trace.

    Raises:
        Refused: for each name that no tensor or module of its trace has or begins with.
    """
    found = Refusals()
    for at, whose in enumerate((reference, trace)):
        known = _all_names(whose)
        for name in (each[at] for each in pairs):
            near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.0))
            problem, remedy = f"is no name in {whose.folder}, and no name begins with it", f"the nearest are {near}"
            found.unless(not name or name in known, "rename", name, problem, remedy)
    found.raise_any()
    given = sorted(((theirs, ours) for ours, theirs in pairs), reverse=True, key=lambda each: len(each[0]))
    return _under(trace, {name: new for name in _all_names(trace) if (new := _moved(name, given)) != name})


def paired(one: Merged, other: Merged) -> tuple[Merged, Mapping[str, str]]:
    """The other run with the names of the first where they are the same tensor's, and the pairs: its name → theirs."""
    mine, its = (_shaped(each) for each in (one, other))
    ours, theirs = ({name: each for name, each in names.items() if name not in others}
                    for names, others in ((mine, its), (its, mine)))  # fmt: skip
    found: dict[str, str] = {}
    rules: tuple[Callable[[str, str], bool], ...] = (
        lambda a, b: _bare(a) == _bare(b),
        lambda a, b: any({a, b} <= {*each} for run in (one, other) for each in _tied(run)),
        lambda a, b: _ends(a, b) and _same(ours[a], theirs[b]),
    )
    for rule in rules:
        found |= _only({b: [a for a in ours if rule(a, b)] for b in theirs})
        ours, theirs = _without(ours, found.values()), _without(theirs, found)
    if not (one.staged or other.staged):
        found |= _by_place(ours, theirs)
    if not found:
        return other, {}
    modules = _modules(found, one, other)
    return Merged(_under(other.trace, found | modules), other.behind), found


def _by_place(ours: Mapping[str, Whole | None], theirs: Mapping[str, Whole | None]) -> dict[str, str]:
    """Names without a word in common: each with the first that has its shape and, when training begins, its norm."""
    found: dict[str, str] = {}
    for name, each in theirs.items():
        alike = [own for own, mine in ours.items() if own not in found.values() and _same(mine, each) and mine and each
                 and math.isclose(mine.squares, each.squares, rel_tol=1e-5)]  # fmt: skip
        found |= {name: alike[0]} if alike else {}
    return found


def _only(candidates: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Each name with its longest candidate, if no other name has that one too."""
    chosen = {name: max(each, key=len) for name, each in candidates.items() if each}
    taken = [*chosen.values()]
    return {name: each for name, each in chosen.items() if taken.count(each) == 1}


def _modules(pairs: Mapping[str, str], one: Merged, other: Merged) -> dict[str, str]:
    """Modules and buffers, which are called as the parameters beside them."""
    starts = {}
    for name, new in pairs.items():
        theirs, ours = name.split("."), new.split(".")
        while theirs and ours and theirs[-1] == ours[-1]:
            del theirs[-1], ours[-1]
        starts[".".join(theirs)] = ".".join(ours)
    known, left = _all_names(one.trace), _all_names(other.trace)
    longest = sorted(starts.items(), reverse=True, key=lambda each: len(each[0]))
    moved = {name: _moved(name, longest) for name in left - known - pairs.keys() - {_ROOT}}
    return {name: new for name, new in moved.items() if new and new not in left}


def _moved(name: str, starts: Sequence[tuple[str, str]]) -> str:
    """A name behind the first beginning of it that is replaced."""
    for old, new in starts:
        if name == old or not old or name.startswith(f"{old}."):
            return f"{new}.{name[len(old) :].removeprefix('.')}".strip(".")
    return name


def _under(trace: Trace, names: Mapping[str, str]) -> Trace:
    return replace(trace, ranks=tuple(
        replace(rank, lines=tuple(_line(line, names) for line in rank.lines)) for rank in trace.ranks
    ))  # fmt: skip


def _line(line: Line, names: Mapping[str, str]) -> Line:
    new: Line = {field: [names.get(each, each) for each in line[field]] for field in _NAMED if field in line}
    if line.get("name") in names:
        new |= {"name": names[line["name"]], "was": line["name"]}
    return line | new


def _all_names(trace: Trace) -> set[str]:
    """The names of parameters, buffers and modules, and their beginnings."""
    lines = [line for rank in trace.ranks for line in rank.lines]
    found = {line["name"] for line in lines if "name" in line}
    found |= {name for line in lines for field in _NAMED for name in line.get(field, ())}
    return found | {name[:at] for name in found for at, sign in enumerate(name) if sign == "."}


def _shaped(run: Merged) -> dict[str, Whole | None]:
    """The parameters, in the order in which their models have them, with their weights when training begins."""
    weights = run.tensors("weight", 1)
    return {name: weights.get(name) for _, line in run.lines("root") for name in (*line["trainable"], *line["frozen"])}


def _tied(run: Merged) -> list[list[str]]:
    return [line["names"] for _, line in run.lines("tied")]


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ADDED)


def _ends(one: str, other: str) -> bool:
    short, long = sorted(map(_bare, (one, other)), key=len)
    return long.endswith(f".{short}")


def _same(one: Whole | None, other: Whole | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape


def _without(names: Mapping[str, Whole | None], these: Iterable[str]) -> dict[str, Whole | None]:
    gone = set(these)
    return {name: each for name, each in names.items() if name not in gone}
