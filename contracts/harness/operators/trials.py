"""Drawn changes of the reference put before the contracts that execute them, until one says that something is wrong.

A change is made in a shadow of the package: links to its files, and one file that is other. The files themselves are
never written. What a check starts (a command, a fork, ranks) finds the shadow as well.
"""

import functools
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import contracts
from contracts.contract import LAW, Law
from contracts.court import record
from contracts.court.judge import judge
from contracts.harness import parties
from contracts.harness.operators.cells import CELLS, cells
from contracts.harness.operators.changes import Change, drawn, equivalents, named
from contracts.harness.operators.forked import forked
from contracts.harness.operators.reach import Reach, basis, item_of
from contracts.spec import Refused, codec, refuse
from contracts.spec.interpreter import python
from contracts.spec.records import Item, Result

Fate = Literal["killed", "crashed", "survived", "equivalent", "unreached"]
FATES: tuple[Fate, ...] = get_args(Fate)
JOURNAL = "operators.jsonl"
BUDGET_S = 90.0  # of recorded time, for the cases that one change is put before
CRASHES = 12  # so many cases that broke and none that was violated: it crashes
CHEAP_S = 0.02  # a thousand such cases in twenty seconds
RANKS_S = 540.0  # for the cases of several ranks


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one change.

    killed: a contract was violated by it, `by` and `words`; crashed: the stack broke, and no contract named a
    violation; survived: all of `tried` cases held; equivalent: argued, not tried; unreached: no case that it was put
    before, of one process or of `ranks`, executes its line. `seconds` is the time that judging took, up to the first
    violation. A kill stands as long as its `basis`, the files on which the contract stands, whatever else is added to
    the law.
    """

    content: str
    change: str
    fate: Fate
    by: str = ""
    words: str = ""
    tried: int = 0
    seconds: float = 0.0
    ranks: int = 1
    was: str = ""
    now: str = ""
    basis: str = ""


def shadow(folder: Path, change: Change, mark: Path | None = None) -> None:
    """Lay the packages into a new folder with one change made; what runs it makes a file of `mark`.

    `rankproof` is copied: it takes for its own only the `contracts` beside its own files.
    """
    folder.mkdir()
    real, place = Path(contracts.__file__).parent, folder / "contracts"
    shutil.copytree(real.with_name("rankproof"), folder / "rankproof")
    for part in ("stacks", "reference", *Path(change.file).parts):
        place.mkdir()
        for each in real.iterdir():
            if each.name not in (part, "__pycache__"):
                (place / each.name).symlink_to(each)
        real, place = real / part, place / part
    place.write_text(change.made(mark), encoding="utf-8")


def trial(change: Change, reach: Reach, *, ranks: int = 1, budget_s: float = BUDGET_S, held: bool = False) -> Trial:
    """Judge one change. With several ranks, what no case of one process executes or sees is put before others: those
    about its file, whose commands may run it in a process of their own, its own `cells`, and those of every file on two
    ranks or `quick4` on four. Of what `held` before all cases of one process, that is not asked again.
    """
    told = functools.partial(Trial, content=reach.content, change=change.id, was=change.was, now=change.now)
    argued = next((each for each in equivalents() if each.covers(change)), None)
    if argued is not None:
        return told(fate="equivalent", words=argued.reason)
    items = _affordable(reach.of(change), reach, budget_s)
    with tempfile.TemporaryDirectory() as place:
        alone, others, mark = (Path(place).resolve() / name for name in ("alone", "others", "mark"))
        found: dict[str, Any] = {"fate": "survived"}
        if items and not (held and ranks > 1):
            shadow(alone, change)
            found = _in_a_fork(alone, items, reach, budget_s)
            if ranks == 1 or found["fate"] != "survived":
                return told(**found)
        elif not items and ranks == 1:
            return told(fate="unreached")
        shadow(others, change, mark)
        if not items:
            nearby = _affordable(reach.near(LAW, change), reach, budget_s)
            found = _in_a_fork(others, nearby, reach, budget_s)
        own = [each for each in cells(change.file) if each not in CELLS[""]]
        for profile in filter(None, (",".join(own), "quick4" if ranks >= 4 else ",".join(CELLS[""]))):
            if found["fate"] == "survived":
                found = _by_ranks(others, ranks, profile)
                if found["fate"] != "survived":
                    _hold_unchanged(ranks, found.get("by") or profile)
        if found["fate"] == "survived" and not items and not change.is_target and not mark.exists():
            found = {"fate": "unreached"}
        return told(**found, ranks=ranks)


def _in_a_fork(folder: Path, items: Sequence[Item], reach: Reach, budget_s: float) -> dict[str, Any]:
    """The outcome of cases of one process on the package that lies in a folder."""
    return _fate(forked(functools.partial(_judged, folder, items, reach), seconds=30 + 10 * budget_s), len(items))


def _affordable(items: Sequence[Item], reach: Reach, budget_s: float) -> list[Item]:
    """Those that fit into the time one after the other, and beside them all that take hardly any."""
    found: list[Item] = []
    spent = 0.0
    for item in items:
        cost = reach.cost(item)
        if not found or cost <= CHEAP_S or spent + cost <= budget_s:
            spent += cost
            found.append(item)
    return found


def _judged(folder: Path, items: Sequence[Item], reach: Reach) -> Iterator[dict[str, Any]]:
    """In a fork: the outcome of one case after the other, until one is violated."""
    contracts.__path__.insert(0, str(folder / "contracts"))
    for name in [each for each in sys.modules if each.startswith("contracts.stacks")]:
        del sys.modules[name]  # what records need of it is imported; the folder has the rest
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    os.chdir(folder)
    importlib.invalidate_caches()
    try:
        subject = parties.load("reference")
        helping = [party for _, party in parties.assistants(subject, (), quick=True)]
    except Exception as error:
        yield {"item": "", "outcome": "broken", "words": f"{type(error).__name__}: {error}", "seconds": 0.0}
        return
    broken = 0
    for item in items:
        patience = max(20.0, 10 * reach.cost(item))
        result = judge(LAW.contracts[item.id], item.case, subject, helping, deadline_s=patience)
        yield _row(result)
        broken += result.outcome == "broken"
        if result.outcome == "violated" or broken == CRASHES:
            return


def _row(result: Result) -> dict[str, Any]:
    return {"item": str(result.item), "outcome": result.outcome, "words": result.words, "seconds": result.seconds}


def _fate(rows: Sequence[dict[str, Any]], planned: int) -> dict[str, Any]:
    """The fate by the outcomes. A fork that died or hung before its end has crashed, unless something was violated."""
    spent = round(sum(row["seconds"] for row in rows), 3)
    for fate, outcomes in (("killed", ("violated",)), ("crashed", ("broken", "not run", "not offered"))):
        red = next((row for row in rows if row["outcome"] in outcomes), None)
        if red is not None:
            words = " ".join(red["words"].split())[:300]
            return {"fate": fate, "by": red["item"], "words": words, "tried": len(rows), "seconds": spent}
    if len(rows) < planned:
        return {"fate": "crashed", "words": "hung or died", "tried": len(rows), "seconds": spent}
    return {"fate": "survived", "tried": len(rows), "seconds": spent}


@functools.cache
def _hold_unchanged(ranks: int, profile: str) -> None:
    """Refuse ranks on which the cases that say that a change is wrong do not hold where nothing is changed."""
    some = next(drawn(0))
    with tempfile.TemporaryDirectory() as place:
        unchanged = Path(place).resolve() / "unchanged"
        shadow(unchanged, replace(some, now=some.was))
        found = _by_ranks(unchanged, ranks, profile)
    if found["fate"] != "survived":
        why = f"{found.get('by') or profile} does not hold on the unchanged reference: {found['words']}"
        raise refuse("--ranks", ranks, why, f"see what `rankproof check --ranks {ranks} --profile '{profile}'` says")


def _by_ranks(folder: Path, ranks: int, profile: str) -> dict[str, Any]:
    """The outcome of cases on ranks that import the package from a folder, if one lies there. A change that was not
    reached in time says nothing.
    """
    report = folder / hashlib.sha256(profile.encode()).hexdigest()[:12]
    words = python("-m", "contracts.harness.cli", "check", "--ranks", str(ranks), "--profile", profile,
                   "--report", str(report))  # fmt: skip
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as ran:
        silent = {"not offered"}
        try:
            ran.wait(RANKS_S)
        except subprocess.TimeoutExpired:
            ran.terminate()  # it ends its ranks
            silent.add("not run")
    try:
        run, _ = record.load(report)
    except Refused:
        return {"fate": "crashed", "words": "no record", "seconds": round(time.monotonic() - started, 3)}
    return _fate([_row(each) for each in run.results if each.outcome not in silent], 1)


def journal(folder: Path, content: str) -> dict[str, Trial]:
    """What is known of changes of this source, the last word on each; of another one the kills that still stand."""
    found: dict[str, Trial] = {}
    for row in rows(folder / JOURNAL):
        if row.get("content") == content or (row.get("basis") and row.get("basis") == _basis(row)):
            told = codec.decode(Trial, row, name=JOURNAL)
            found[told.change] = told
    return found


def _basis(row: Mapping[str, Any]) -> str:
    """What a kill stands on here and now; nothing for another fate."""
    return basis(item_of(str(row.get("by"))).id) if row.get("fate") == "killed" else ""


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """The objects in a journal, one a line. A line that a kill cut off, also with the next one after it, is none."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def run(
    law: Law, reach: Reach, folder: Path, *, count: int, seed: int, only: tuple[str, ...] = (),
    seconds: float | None = None, ranks: int = 1, tell: Callable[[Trial], object] = lambda _: None,
) -> list[Trial]:  # fmt: skip
    """The first `count` changes that a seed draws, those that the journal has not; until the time is over.

    `only` has ids, which are tried whatever the journal says, or beginnings of ids or files. A journal entry of one
    process that was unreached or survived is tried again where there are ranks.
    """
    until = None if seconds is None else time.monotonic() + seconds
    known = journal(folder, reach.content)
    ids = [each for each in only if "@" in each and ":" in each]
    beginnings = tuple(each for each in only if each not in ids)
    chosen = chain([named(each) for each in ids], drawn(seed, beginnings) if beginnings or not ids else ())
    found: list[Trial] = []
    for change in chosen:
        if len(found) == count or (until is not None and time.monotonic() > until):
            break
        earlier = known.get(change.id)
        again = (
            earlier is None or change.id in ids or (ranks > earlier.ranks and earlier.fate in ("unreached", "survived"))
        )
        if earlier is None or again or any(each.covers(change) for each in equivalents()):
            held = earlier is not None and earlier.fate == "survived" and earlier.content == reach.content
            earlier = trial(change, reach, ranks=ranks, held=held)
            earlier = replace(earlier, basis=_basis(asdict(earlier)))
            tell(earlier)
        elif earlier.content == reach.content:
            found.append(earlier)
            continue
        earlier = replace(earlier, content=reach.content)
        with (folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(earlier)) + "\n")
        found.append(earlier)
    return found
