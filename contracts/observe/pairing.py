"""Which name of one run is which of another: a wrapper, a compiler or an author calls the same tensor otherwise.

Names that both runs have stay. Of the others a pair is what is the same without the parts that wrappers add, or is tied
to it, or ends with it and has its shape, or has its shape, its norm when training begins and its place among those.
"""

import difflib
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from contracts.observe.merged import Merged, Whole
from contracts.observe.names import WRAPPERS
from contracts.observe.trace import Line, Trace
from contracts.spec.errors import Refusals

ADDED = WRAPPERS | {"module", "_forward_module"}
"""Parts of a name that wrappers add: DDP and its like, those of Lightning's Fabric and DeepSpeed."""
_NAMED = ("names", "trainable", "frozen", "evaluating", "matter")
_ROOT = "(root)"
_Weights = Mapping[str, Whole | None]
"""Parameters of a run, with their weights when training begins; None for one that nobody can place."""


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
    given = {theirs: ours for ours, theirs in pairs}
    return _under(trace, {name: new for name in _all_names(trace) if (new := _moved(name, given)) != name})


def paired(one: Merged, other: Merged) -> tuple[Merged, Mapping[str, str]]:
    """The other run with the names of the first where they are the same tensor's, and the pairs: its name → theirs."""
    mine, its = (_shaped(each) for each in (one, other))
    ours, theirs = ({name: each for name, each in names.items() if name not in others}
                    for names, others in ((mine, its), (its, mine)))  # fmt: skip
    found: dict[str, str] = {}
    tied = [pair for run in (one, other) for _, line in run.lines("tied")
            for pair in itertools.permutations(line["names"], 2)]  # fmt: skip
    for rule in (_of_one_bare_name, lambda ours, theirs: _of_pairs(tied, ours, theirs), _that_end_alike):
        found |= _only(rule(ours, theirs))
        ours, theirs = _without(ours, found.values()), _without(theirs, found)
    if not (one.staged or other.staged):
        found |= _by_place(ours, theirs)
    if not found:
        return other, {}
    modules = _modules(found, one, other)
    return Merged(_under(other.trace, found | modules), other.behind), found


def _of_one_bare_name(ours: _Weights, theirs: _Weights) -> dict[str, list[str]]:
    index = _index((_bare(name), name) for name in ours)
    return {name: index.get(_bare(name), []) for name in theirs}


def _of_pairs(pairs: Iterable[Sequence[str]], ours: _Weights, theirs: _Weights) -> dict[str, list[str]]:
    return _index((name, own) for own, name in pairs if own in ours and name in theirs)


def _that_end_alike(ours: _Weights, theirs: _Weights) -> dict[str, list[str]]:
    whole = _index((_bare(name), name) for name in ours)
    ends = _index((end, name) for name in ours for end in _ends(_bare(name)))
    found = {}
    for name, each in theirs.items():
        bare = _bare(name)
        alike = itertools.chain(ends.get(bare, []), *(whole.get(end, []) for end in _ends(bare)))
        found[name] = [own for own in alike if _same(ours[own], each)]
    return found


def _by_place(ours: _Weights, theirs: _Weights) -> dict[str, str]:
    """Names without a word in common: each with the first that has its shape and, when training begins, its norm."""
    found: dict[str, str] = {}
    left: dict[tuple[int, ...], OrderedDict[str, float]] = {}  # whose first entry is found at once, after others went
    for own, mine in ours.items():
        if mine is not None:
            left.setdefault(mine.shape, OrderedDict())[own] = mine.squares
    for name, each in theirs.items():
        of = left.get(each.shape, OrderedDict()) if each is not None else {}
        alike = (own for own, squares in of.items() if each and math.isclose(squares, each.squares, rel_tol=1e-5))
        if own := next(alike, ""):
            found[name] = own
            del of[own]
    return found


def _only(candidates: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Each name with its longest candidate, if no other name has that one too."""
    chosen = {name: max(each, key=len) for name, each in candidates.items() if each}
    taken = Counter(chosen.values())
    return {name: each for name, each in chosen.items() if taken[each] == 1}


def _modules(pairs: Mapping[str, str], one: Merged, other: Merged) -> dict[str, str]:
    """Modules and buffers, which are called as the parameters beside them."""
    starts = {}
    for name, new in pairs.items():
        theirs, ours = name.split("."), new.split(".")
        while theirs and ours and theirs[-1] == ours[-1]:
            del theirs[-1], ours[-1]
        starts[".".join(theirs)] = ".".join(ours)
    known, left = _all_names(one.trace), _all_names(other.trace)
    moved = {name: _moved(name, starts) for name in left - known - pairs.keys() - {_ROOT}}
    return {name: new for name, new in moved.items() if new and new not in left}


def _moved(name: str, starts: Mapping[str, str]) -> str:
    """A name whose longest beginning that is to be replaced is replaced."""
    points = [at for at, sign in enumerate(name) if sign == "."]
    for old in (name, *(name[:at] for at in reversed(points)), ""):
        if old in starts:
            return f"{starts[old]}.{name[len(old) :].removeprefix('.')}".strip(".")
    return name


def _under(trace: Trace, names: Mapping[str, str]) -> Trace:
    return replace(trace, ranks=tuple(
        replace(rank, lines=tuple(_line(line, names) for line in rank.lines)) for rank in trace.ranks
    ))  # fmt: skip


def _line(line: Line, names: Mapping[str, str]) -> Line:
    new: Line = {field: [names.get(each, each) for each in line[field]] for field in _NAMED if field in line}
    if line.get("name") in names:
        new["name"] = names[line["name"]]
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


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ADDED)


def _ends(name: str) -> list[str]:
    """What a name ends with, after each of its points, the longest first."""
    return [name[at + 1 :] for at, sign in enumerate(name) if sign == "."]


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _same(one: Whole | None, other: Whole | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape


def _without(names: _Weights, these: Iterable[str]) -> dict[str, Whole | None]:
    gone = set(these)
    return {name: each for name, each in names.items() if name not in gone}
