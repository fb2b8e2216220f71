"""Runs the sides and compares them.

Two runs say whether anything differs. Only if it does, the base is run again, moved by a rounding: what differs between
those two is no change, and how far apart they are is what rounding does. If the initial weights differ, the head is run
again from those of the base, so that the answer also says what else differs.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from contracts.court.base_and_head import Difference as Change
from contracts.court.base_and_head import difference
from contracts.harness import child_process
from contracts.harness.ab import command
from contracts.harness.ab.sides import Side, Sides
from contracts.harness.checkout import Repository
from contracts.harness.judged_trace import judged
from contracts.harness.supervisor import Stopped
from contracts.observe import source
from contracts.observe.diff import Comparison, compare
from contracts.observe.merged import Merged
from contracts.observe.pairing import renamed
from contracts.observe.source import Place, Tree
from contracts.observe.started import Options
from contracts.observe.trace import Trace, read
from contracts.spec import Refused
from contracts.spec.records import Run, Verdict
from contracts.spec.redaction import secrets_here

INITIAL = "initial weights"
OBSERVED = ("OBS-16", "OBS-17")
"""What a run that was not observed violates: it says nothing of the code."""
JUDGED = ("judged-base", "judged-head")
AGAIN = "two runs of the same side are not comparable, so that nothing can be said of the other: "


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that ended; `problem` is why it says nothing, in words, and empty where it was observed."""

    side: Side
    trace: Trace | None = None
    tree: Path | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came out.

    Args:
        problems: why a side could not be observed.
        weights: what was done about initial weights that differ.
        rest: the comparison from the weights of the base, if the initial weights differ.
        change: what the OBS contracts say of the two sides; None where one of them was not judged.
        places: where to look, the first of them for the first difference.
        modules: the class of each module of the head's model.
    """

    problems: tuple[str, ...] = ()
    comparison: Comparison | None = None
    weights: str = ""
    rest: Comparison | None = None
    change: Change | None = None
    verdicts: tuple[tuple[str, Run, Verdict], ...] = ()
    places: tuple[Place, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def new(self) -> tuple[str, ...]:
        """The items that only the head violates; of two layouts, all that the second one violates."""
        if self.change is not None:
            return tuple(f"{pair.shown.item}: {pair.shown.words}" for pair in self.change.of["new"])
        return tuple(f"{each.item}: {each.words}" for _, _, verdict in self.verdicts for each in verdict.results
                     if each.outcome == "violated")  # fmt: skip


@dataclass(kw_only=True)
class Trial:
    """The runs of two sides, each in a checkout of its own.

    Args:
        folder: for traces and logs.
        kept: what takes the checkouts away in the end.
        lent: whether the head begins with the weights of the base in any case.
        several: whether the sides are layouts: what healthy runs on several ranks keep cannot be asked of one.
    """

    sides: Sides
    folder: Path
    kept: ExitStack
    stop: child_process.Stop
    options: Options
    links: Sequence[str] = ()
    renames: Sequence[tuple[str, str]] = ()
    first: int = 1
    lent: bool = False
    several: bool = False

    def found(self) -> Found:
        one = self.run(self.sides.base, "base", keep=True)
        lender = one.trace.folder if self.lent and one.trace is not None else None
        two = self.run(self.sides.head, "head", lender=lender)
        if one.trace is None or two.trace is None:
            return Found(problems=tuple(each.problem for each in (one, two) if each.problem))
        first = self._compared(one, two)
        found = Found(comparison=first)
        if first.differences or first.incomparable:
            found = self._again(one, two, first)
        return self._judged(one, two, self._placed(two, found))

    def _again(self, one: Ran, two: Ran, first: Comparison) -> Found:
        """The same, after another run of the base has said what it repeats."""
        assert one.trace is not None
        lender = one.trace.folder
        moved = self.run(self.sides.base, "base-again", perturb=1, lender=lender if self.lent else None)
        if moved.trace is None:
            return Found(comparison=replace(first, differences=(), incomparable=f"{AGAIN}{moved.problem}"))
        repeat = self._compared(one, replace(moved, side=one.side))
        if repeat.incomparable:
            return Found(comparison=replace(first, differences=(), incomparable=f"{AGAIN}{repeat.incomparable}"))
        drawn = bool(repeat.differences) and repeat.differences[0].phase == INITIAL
        found = self._compared(one, two, () if drawn else (moved,))
        if not found.differences or found.differences[0].phase != INITIAL or self.lent:
            return Found(comparison=found)
        lent = self.run(self.sides.head, "head-from-base", lender=lender)
        if lent.trace is None:
            return Found(comparison=found, weights=f"not run from the base's: {lent.problem}")
        if not drawn:
            rest = self._compared(one, lent, (moved,))
            return Found(comparison=found, weights=_weights(found), rest=rest)
        moved = self.run(self.sides.base, "base-from-base", perturb=1, lender=lender)
        repeats = (moved,) if moved.trace is not None else ()
        said = (
            f"they differ in every run (no seed?), {found.differences[0].name} first; both sides begin with the base's"
        )
        return Found(comparison=self._compared(one, lent, repeats), weights=said)

    def _compared(self, one: Ran, two: Ran, repeats: Sequence[Ran] = ()) -> Comparison:
        assert one.trace is not None
        assert two.trace is not None
        other = two.trace
        if self.renames and two.side is not one.side:
            other = renamed(other, self.renames, one.trace)
        again = [Merged(each.trace, self.first - 1) for each in repeats if each.trace is not None]
        return compare(Merged(one.trace, self.first - 1), Merged(other, self.first - 1), again)

    def _placed(self, two: Ran, found: Found) -> Found:
        assert two.trace is not None
        root = two.tree or Path.cwd()
        classes, files = source.classes(two.trace), source.files(two.trace)
        tree = Tree(root=root.resolve(), classes=classes, files=files, changed=self.sides.changed)
        compared = [each for each in (found.comparison, found.rest) if each is not None and each.differences]
        places = [place for each in compared if (place := tree.place(each.differences[0]))]
        if found.comparison is not None and (found.comparison.differences or found.comparison.incomparable):
            places += [
                each for each in tree.elsewhere() if (each.file, each.line) not in {(p.file, p.line) for p in places}
            ]
        return replace(found, places=tuple(places), modules=tree.classes)

    def _judged(self, one: Ran, two: Ran, found: Found) -> Found:
        verdicts = []
        for ran, folder in [*zip((one, two), JUDGED, strict=True)][self.several :]:
            assert ran.trace is not None
            verdicts.append((ran.side.name, *judged(ran.trace, self.folder / folder)))
        change = None if self.several else difference(verdicts[0][1], verdicts[1][1])
        blind = tuple(f"{name}: {each.words}" for name, _, verdict in verdicts for each in verdict.results
                      if each.id in OBSERVED and each.outcome == "violated")  # fmt: skip
        return replace(found, verdicts=tuple(verdicts), change=change, problems=blind)

    def run(
        self, side: Side, name: str, *, keep: bool = False, lender: Path | None = None, perturb: int | None = None
    ) -> Ran:
        """Run a side, observed.

        Raises:
            Stopped: where a signal came.
        """
        tree, folder = self._tree(side)
        out = self.folder / name
        options = replace(self.options, out=out, keep=keep, lender=lender, perturb=perturb)
        words = command.observed(side.words, [*options.words()])
        sys.stderr.write(f"rankproof: {name}: {side.label}\n")
        ended = child_process.run(
            words, self._environment(side, tree), self.folder / f"{name}.log", secrets_here(side.env, words), self.stop,
            lambda _: None, folder,
        )  # fmt: skip
        if ended.stopped_by is not None:
            raise Stopped(ended.stopped_by)
        problem = f"ended with exit code {ended.exit_code}: {ended.last_words}" if ended.exit_code else ""
        try:
            trace = read(out)
        except Refused:
            return Ran(side=side, tree=tree, problem=f"{side.name}: {problem or 'left no trace: no optimizer stepped'}")
        if not problem and (foreign := self._foreign(trace)):
            problem = f"runs {foreign}, which is not in its checkout: it is installed from there"
        return Ran(
            side=side, tree=tree, trace=None if problem else trace, problem=problem and f"{side.name}: {problem}"
        )

    def _tree(self, side: Side) -> tuple[Path | None, Path]:
        """A checkout of a side, and the folder in it that is the working directory."""
        top = self.sides.top
        if top is None:
            return None, Path.cwd()
        repository = Repository(path=str(top), given=side.label, field=side.name)
        tree = self.kept.enter_context(repository.worktree(side.revision))
        for each in side.loose:
            (tree / each).parent.mkdir(parents=True, exist_ok=True)
            (tree / each).write_bytes((top / each).read_bytes())
        for link in (Path(os.path.relpath(Path.cwd() / each, top)) for each in self.links):
            (tree / link).parent.mkdir(parents=True, exist_ok=True)
            if not (tree / link).exists():
                (tree / link).symlink_to(top / link)
        folder = tree / Path.cwd().resolve().relative_to(top.resolve())
        folder.mkdir(parents=True, exist_ok=True)
        return tree, folder

    def _environment(self, side: Side, tree: Path | None) -> dict[str, str]:
        """The variables of a run: folders of the repository on the path of Python, such as those of an installation in
        editable mode, are the checkout's."""
        paths = [Path(each) for each in side.env["PYTHONPATH"].split(os.pathsep)]
        top = self.sides.top
        if tree is None or top is None:
            return dict(side.env)
        own = [Path(each) for each in side.python.get("editable", ()) if Path(each).is_relative_to(top)]
        own = [each for folder in own for each in (folder, folder / "src") if each.is_dir()]
        moved = [tree / each.relative_to(top) if each.is_relative_to(top) else each for each in (*own, *paths)]
        return {**side.env, "PYTHONPATH": os.pathsep.join(map(str, moved))}

    def _foreign(self, trace: Trace) -> str:
        """A file of code that is the user's working tree's, and no checkout's."""
        top = self.sides.top
        own = (each for each in sorted(source.files(trace)) if top is not None and each.is_relative_to(top.resolve()))
        return str(next(own, ""))


def _weights(found: Comparison) -> str:
    names = [each.name for each in found.differences]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the sides draw different ones: {names[0]}{more}; below, both begin with the base's"


def ignored(sides: Sides) -> str:
    """What a run may lack, for whoever reads that it failed."""
    if not sides.ignored:
        return ""
    names = ", ".join(sides.ignored[:4]) + (" …" if len(sides.ignored) > 4 else "")
    told = f"a checkout lacks what git ignores ({names}); if the script reads it"
    return f"{told}: --link {shlex.quote(sides.ignored[0])}"
