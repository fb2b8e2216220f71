"""The machine as an axis: one stack judged on variations of this machine, and the same verdict demanded item by item.

    python -m benchmarks.machines                    # the nightly command, at most 90 minutes
    python -m benchmarks.machines --quick            # every level once, on a few families
    python -m benchmarks.machines --list             # the rows, and which levels meet in each
    python -m benchmarks.machines --rows 5,7         # these again, beside the plain machine's
    python -m benchmarks.machines --whole --budget 300    # every row judges every item
    python -m benchmarks.machines --device cuda      # the gpu tier, with what GPUs differ in

Rows bring every two levels of two axes together. Each is a `rankproof check` of its own; its results are held against
those of the first row that was judged the same way, which is the plain machine. If everything takes long, under load
and on four ranks with sums in another order, a row judges a share of the items, another share each time. Rows with sums
in another order judge the contracts that ask for something which is computed in that order.

The exit code is 1 where an item's outcome differs or the plain machine's is red, 3 where a row was not run to its end
or time ran out in one, and says so.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from benchmarks._axes import ROOT, Axes, Cpu, Level, Torch, axes, cpu, interpreters, torch_of
from benchmarks._covering import Meeting, Row, covering, meetings, meetings_of
from contracts.court import record
from contracts.instruments.atomic_write import write_whole
from contracts.spec import Refused
from contracts.spec.records import Item, Outcome, Result, Run

ONE, RANKS = "launch,machine,numeric", "dist4"
QUICK = "BLK-03,BLK-04a,MOE-01,OPT"
SHARE = 6  # of the items a row under load judges every sixth, the next such row the ones after them
SHARE_OF_RANKS = 3  # likewise four ranks whose sums run in another order, which takes twice as long
WORTH_SHARING = 60  # fewer items are judged whole
FIRST_GUESS_S = 300.0  # for a row of which none of its kind has run yet
GRACE_S = 40.0  # torchrun gives its workers thirty seconds to end
RED: tuple[Outcome, ...] = ("violated", "broken")
MISSING, EXTRA = "no result", "not among the plain machine's"

# It looks for its parent: a harness that was killed leaves nothing busy.
_SPIN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""

_TIME = re.compile(r"within [\d.]+ s\b|[Tt]ime ran out|[Tt]imed out|did not come in time|no answer in time")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An item whose outcome is another than on the plain machine. `time`: its words say that time ran out."""

    id: str
    case: str
    plain: str
    here: str
    words: str
    time: bool = False


@dataclass(frozen=True, kw_only=True)
class Done:
    """A row that ran. `problem`: why there is no record of it; `word`: the verdict; `items`: how many it judged."""

    number: int
    row: Mapping[str, str]
    command: tuple[str, ...]
    seconds: float
    problem: str = ""
    word: str = ""
    items: int = 0
    differences: tuple[Difference, ...] = ()


def compared(plain: Run, here: Run, planned: Collection[Item] | None = None) -> tuple[Difference, ...]:
    """Where two runs of one stack differ.

    Args:
        planned: what of the plain run's items the other had to judge; all of them by default.
    """
    expected = {result.item: result for result in plain.results}
    wanted = set(expected) if planned is None else set(planned)
    found = {result.item: result for result in here.results}
    differing = [
        _difference(item, expected[item], found.get(item))
        for item in expected
        if item in wanted and (item not in found or found[item].outcome != expected[item].outcome)
    ]
    extra = [_difference(item, None, result) for item, result in found.items() if item not in wanted]
    return (*differing, *extra)


def _difference(item: Item, plain: Result | None, here: Result | None) -> Difference:
    words = "" if here is None else here.words
    return Difference(
        id=item.id, case=item.case, plain=EXTRA if plain is None else plain.outcome,
        here=MISSING if here is None else here.outcome, words=words, time=bool(_TIME.search(words)),
    )  # fmt: skip


def share(items: Sequence[Item], turn: int, parts: int) -> tuple[Item, ...]:
    """The items of its kind that the row whose turn it is judges, which are shared by so many."""
    return tuple(items) if len(items) < WORTH_SHARING else tuple(items[turn % parts :: parts])


def with_sums(items: Iterable[Item]) -> tuple[Item, ...]:
    """Those whose contracts ask at least one question that `contracts.stacks.reordered` computes in another order."""
    from contracts.contract import LAW
    from contracts.harness.families import read_checks
    from contracts.stacks.reordered import COMPUTES

    read_checks()
    asking = {id for id, contract in LAW.contracts.items() if set(COMPUTES) & set(contract.asks)}
    return tuple(each for each in items if each.id in asking)


def left_uncovered(names: Mapping[str, Sequence[str]], rows: Iterable[Row], strength: int) -> list[Meeting]:
    """Which meetings no row of these brings about."""
    seen = {each for row in rows for each in meetings_of(row, names, strength)}
    return [each for each in meetings(names, strength) if each not in seen]


def said(meeting: Meeting, names: Iterable[str]) -> str:
    """Levels that meet, in the order of the axes."""
    levels = dict(meeting)
    return " × ".join(f"{axis} {levels[axis]}" for axis in names if axis in levels)


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    """So many processes that do nothing but use a core each, until the block ends, however it ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(busy):
            words = [sys.executable, "-S", "-c", _SPIN, str(os.getpid())]
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        yield
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


class Harness:
    """Runs rows one after the other and holds each against the plain machine's."""

    def __init__(self, axes: Axes, out: Path, budget_s: float, *, whole: bool = False) -> None:
        self.axes, self.out, self.until, self.whole = axes, out, time.monotonic() + budget_s, whole
        self.done: list[Done] = []
        self.plain: dict[str, Run] = {}
        self._turns: dict[tuple[str, int], int] = {}
        self._ours = {name for levels in axes.levels.values() for level in levels for name in level.environment}

    def left_s(self) -> float:
        return self.until - time.monotonic()

    def guess_s(self, row: Row) -> float:
        """What a row will take: what one of its kind took, or what a kind like it did."""
        kinds = [self._kind(row), *(self._kind(row)[:length] for length in (2, 1))]
        for kind in kinds:
            took = [done.seconds for done in self.done if self._kind(tuple(done.row.values()))[: len(kind)] == kind]
            if took:
                return max(took)
        return FIRST_GUESS_S

    def _kind(self, row: Row) -> tuple[str, ...]:
        at = dict(zip(self.axes.levels, row, strict=True))
        return tuple(at.get(axis, "") for axis in ("judging", "load", "sums"))

    def run(self, number: int, row: Row) -> Done:
        """Judge on one row. A record that was not written to its end is a problem, not a result."""
        at, levels = dict(zip(self.axes.levels, row, strict=True)), self.axes.of(row)
        judging = at.get("judging", "")
        folder = self.out / f"row-{number:02}"
        record.make_folder(folder)  # an older night's record must not be read as this one's
        planned = self._planned(at, levels)
        command = _command(levels, folder, planned)
        started = time.monotonic()
        with beside(sum(level.busy for level in levels)):
            ended = self._to_its_end(command, self._environment(levels), folder / "said.txt")
        done = Done(number=number, row=at, command=command, seconds=round(time.monotonic() - started, 1))
        try:
            run, closing = record.load(folder)
        except Refused as refused:
            last = (folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip()[-300:]
            return self._kept(replace(done, problem=f"{ended}, {refused.refusals[0]}; {last}"))
        if not run.results:
            return self._kept(replace(done, problem="nothing was judged"))
        differences = compared(self.plain.setdefault(judging, run), run, planned)
        return self._kept(replace(done, word=closing.word, items=len(run.results), differences=differences))

    def _planned(self, at: Mapping[str, str], levels: Sequence[Level]) -> tuple[Item, ...] | None:
        """What a row judges of the plain machine's items; None: all of them."""
        judging = at.get("judging", "")
        plain = self.plain.get(judging)
        reordered = "sums" in at and at["sums"] != self.axes.levels["sums"][0].name
        busy = any(level.busy for level in levels)
        leaves = frozenset[str]().union(*(level.leaves for level in levels))
        if plain is None or not (leaves or ((busy or reordered) and not self.whole)):
            return None
        items = with_sums(plain.plan.items) if reordered and not self.whole else plain.plan.items
        items = tuple(each for each in items if each.id not in leaves)
        if self.whole or not (busy or reordered):
            return items
        several = any("--ranks" in level.options for level in levels)
        parts = SHARE if busy else SHARE_OF_RANKS if several else 1
        turn = self._turns[judging, parts] = self._turns.get((judging, parts), -1) + 1
        return share(items, turn, parts)

    def _kept(self, done: Done) -> Done:
        self.done.append(done)
        return done

    def _environment(self, levels: Iterable[Level]) -> dict[str, str]:
        """Nothing of the axes is inherited. Threads that wait do not spin: with more of them than cores each wait would
        take a time slice, and that is only speed."""
        kept = {name: value for name, value in os.environ.items() if name not in self._ours}
        chosen = {name: value for level in levels for name, value in level.environment.items()}
        return {**kept, "OMP_WAIT_POLICY": "PASSIVE", **chosen}

    def _to_its_end(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> str:
        """How it ended."""
        with log.open("w") as file, subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as running:  # fmt: skip
            try:
                running.wait(timeout=max(self.left_s(), 1.0))
            except subprocess.TimeoutExpired:
                return "the budget ran out"
            finally:
                _ended(running)
        return f"exit code {running.returncode}"


def _ended(running: subprocess.Popen[bytes]) -> None:
    """The whole group is gone: first asked, then killed. A torchrun in it ends its ranks, which have groups of their
    own, so it is given the time even where the leader has ended before it."""
    until = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGTERM)
        while time.monotonic() < until:
            running.poll()  # one that has ended and was not waited for still belongs to the group
            os.killpg(running.pid, 0)
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def _command(levels: Iterable[Level], folder: Path, planned: Sequence[Item] | None) -> tuple[str, ...]:
    python = next((level.python for level in levels if level.python), sys.executable)
    options = [word for level in levels for word in level.options]
    if planned is not None:
        options[options.index("--profile") + 1] = ",".join(item.id if not item.case else str(item) for item in planned)
    return (python, "-m", "contracts.harness.cli", "check", *options, "--report", str(folder))


def main(argv: list[str]) -> int:
    asked = _asked(argv)
    signal.signal(signal.SIGTERM, _stopped)  # so that what was started is ended
    found = [(python, torch_of(python)) for python in interpreters(asked.torch)]
    torches = [each for _, each in found if isinstance(each, Torch)]
    for python, why in found:
        if isinstance(why, str):
            _say(f"{python} has no torch that runs: {why}")
    if not isinstance(found[0][1], Torch):
        return 3
    if asked.device == "cuda" and torches[0].cuda is None:
        _say("torch sees no CUDA device; without --device cuda the processor is varied")
        return 3
    processor = cpu()
    every = axes(asked.device, processor, torches, stack=asked.stack, judging=_judging(asked))
    every = _narrowed(every, asked)
    names, strength = every.names, 1 if asked.quick else min(2, len(every.levels))
    rows = covering(names, _plain(names), strength)
    _say(f"{processor.model}, {processor.cores} cores; torch {torches[0].version}, {torches[0].capability}"
         + (f", {torches[0].cuda}" if torches[0].cuda else ""))  # fmt: skip
    for words in every.absent:
        _say(f"not here: {words}")
    if asked.list:
        return _listed(rows, names, strength)
    if beyond := [str(number) for number in asked.rows if not 1 <= number <= len(rows)]:
        _say(f"--rows {','.join(beyond)}: there are rows 1 to {len(rows)}, as --list shows them")
        return 3
    (asked.out / "machines.json").unlink(missing_ok=True)  # of an older night: a stopped one leaves none
    harness = Harness(every, asked.out, 60 * asked.budget, whole=asked.whole)
    left = _run(harness, rows, _chosen(asked.rows, rows, [*names].index("judging")))
    told = _told(harness, left, names, strength)
    write_whole(asked.out / "machines.json", json.dumps(_figures(harness, left, processor, torches, told), indent=1))
    for line in told:
        _say(line)
    _say(f"{asked.out / 'machines.json'}")
    return _code(harness, left)


def _chosen(numbers: Collection[int], rows: Sequence[Row], judging: int) -> set[int]:
    """The rows to run: all, or those asked for and the plain ones, each the first of its way to judge, that they are
    held against. `judging` is that axis's place in a row."""
    if not numbers:
        return set(range(1, len(rows) + 1))
    ways = [row[judging] for row in rows]
    return {*numbers, *(ways.index(ways[number - 1]) + 1 for number in numbers)}


def _run(harness: Harness, rows: Sequence[Row], chosen: Collection[int]) -> list[Row]:
    """Run what is chosen and what the budget has room for; returns the others."""
    left: list[Row] = []
    judging = [*harness.axes.levels].index("judging")
    for number, row in enumerate(rows, start=1):
        if number not in chosen or harness.guess_s(row) > harness.left_s():
            left.append(row)
            continue
        done = harness.run(number, row)
        if done.problem and harness.left_s() <= 0:
            left.append(row)
        to_go = sum(harness.guess_s(each) for at, each in enumerate(rows[number:], number + 1) if at in chosen)
        _say(f"[{number:2}/{len(rows)}] {_at(done.row, harness.axes)}: {_became(done)}, {done.seconds:.0f} s; "
             f"{min(to_go, max(harness.left_s(), 0)) / 60:.0f} min to go")  # fmt: skip
        if done.problem and row[judging] not in harness.plain:
            _say(f"there is nothing to hold the others of {row[judging]} against")
            chosen = {at for at in chosen if rows[at - 1][judging] != row[judging]}
    return left


def _plain(names: Mapping[str, Sequence[str]]) -> list[Row]:
    """The plain machine, judged in each way: what all others are held against."""
    first = {axis: levels[0] for axis, levels in names.items()}
    return [tuple({**first, "judging": each}[axis] for axis in names) for each in names["judging"]]


def _judging(asked: argparse.Namespace) -> list[Level]:
    if asked.device == "cuda":
        return [Level(name="gpu", options=("--with", "none", "--profile", asked.profile or "gpu"))]
    words = ("--profile", asked.profile or (QUICK if asked.quick else ONE), "--jobs", str(asked.jobs))
    levels = [Level(name="one process", options=words)]
    ranks = asked.ranks_profile or (None if asked.profile or asked.quick else RANKS)
    if ranks:
        levels.append(Level(name="four ranks", options=("--profile", ranks, "--ranks", "4")))
    return levels


def _narrowed(every: Axes, asked: argparse.Namespace) -> Axes:
    """Only what was asked for: other axes keep their plain level."""
    quick = {*every.levels} - {"load"} if asked.quick else {*every.levels}
    kept = set(asked.axes.split(",")) & quick if asked.axes else quick
    absent = every.absent
    if asked.quick:
        absent = (*absent, "busy processes and four ranks: without --quick")
    return Axes(
        levels={axis: at if axis in {*kept, "judging"} else at[:1] for axis, at in every.levels.items()}, absent=absent
    )


def _at(row: Mapping[str, str], axes: Axes) -> str:
    """Where a row is not the plain machine."""
    other = [f"{axis} {row[axis]}" for axis, at in axes.levels.items() if axis != "judging" and row[axis] != at[0].name]
    return f"{row['judging']}, {', '.join(other) or 'plain'}"


def _became(done: Done) -> str:
    if done.problem:
        return f"not run to its end: {done.problem}"
    timed = sum(each.time for each in done.differences)
    other = len(done.differences) - timed
    words = [f"{other} differ"] * bool(other) + [f"in {timed} time ran out"] * bool(timed)
    return f"{done.items} items, {', '.join(words) or 'all as on the plain machine'}"


def _red(harness: Harness) -> list[Result]:
    return [result for run in harness.plain.values() for result in run.results if result.outcome in RED]


def _told(harness: Harness, left: Sequence[Row], names: Mapping[str, Sequence[str]], strength: int) -> list[str]:
    lines = ["", "| row | where | items | verdict | s | |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {done.number} | {_at(done.row, harness.axes)} | {done.items} | {done.word} | {done.seconds:.0f} | "
        f"{_became(done).replace('|', '/')} |"
        for done in harness.done
    ]
    lines += [
        f"red on the plain machine: {each.item} is {each.outcome}: {_short(each.words)}" for each in _red(harness)
    ]
    for done in harness.done:
        for each in done.differences:
            lines.append(
                f"row {done.number} ({_at(done.row, harness.axes)}): {Item(id=each.id, case=each.case)} is "
                f"{each.here}, plain {each.plain}{' (time ran out)' if each.time else ''}: {_short(each.words)}"
            )
    ran = [tuple(done.row[axis] for axis in names) for done in harness.done if not done.problem]
    open_ = left_uncovered(names, ran, strength)
    if open_:
        lines.append(f"not met, in {len(left)} rows that --rows or the budget left and those that did not end:")
        lines += [f"  {said(each, names)}" for each in open_]
    return lines


def _short(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= 300 else f"{flat[:290]}…"


def _code(harness: Harness, left: Sequence[Row]) -> int:
    differ = [each for done in harness.done for each in done.differences]
    if _red(harness) or any(not each.time for each in differ):
        return 1
    return 3 if left or differ or any(done.problem for done in harness.done) else 0


def _figures(
    harness: Harness, left: Sequence[Row], processor: Cpu, torches: Sequence[Torch], told: Sequence[str]
) -> dict[str, object]:
    return {
        "cpu": {**asdict(processor), "flags": sorted(processor.flags)},
        "torch": [asdict(each) for each in torches],
        "axes": harness.axes.names,
        "absent": harness.axes.absent,
        "rows": [asdict(done) for done in harness.done],
        "left": [dict(zip(harness.axes.levels, row, strict=True)) for row in left],
        "red": [{"item": str(each.item), "outcome": each.outcome, "words": each.words} for each in _red(harness)],
        "told": [line for line in told if line],
        "exit_code": _code(harness, left),
    }


def _listed(rows: Sequence[Row], names: Mapping[str, Sequence[str]], strength: int) -> int:
    seen: set[Meeting] = set()
    for number, row in enumerate(rows, start=1):
        new = [each for each in meetings_of(row, names, strength) if each not in seen]
        seen.update(new)
        _say(f"{number:2}  {', '.join(f'{axis} {level}' for axis, level in zip(names, row, strict=True))}")
        _say(f"    {len(new)} new: {'; '.join(said(each, names) for each in new)}")
    _say(f"{len(rows)} rows for {len(seen)} meetings")
    return 0


def _asked(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machines", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help=f"every level once, on {QUICK}, in one process, no load")
    parser.add_argument("--list", action="store_true", help="show the rows, judge nothing")
    parser.add_argument("--stack", default="reference", help="as for rankproof check")
    parser.add_argument("--profile", help=f"what one process judges ({ONE}; on a GPU gpu); alone: no four ranks")
    parser.add_argument("--ranks-profile", metavar="PROFILE", help=f"what four ranks judge ({RANKS})")
    parser.add_argument("--axes", metavar="A,B", help="vary only these")
    parser.add_argument("--rows", type=_row_numbers, default=(), metavar="N,N", help="judge only these rows of --list")
    parser.add_argument(
        "--torch", action="append", default=[], metavar="PYTHON", help="an interpreter with another torch"
    )
    parser.add_argument("--whole", action="store_true", help="every row judges every item, however long that takes")
    parser.add_argument("--budget", type=float, default=90.0, metavar="MINUTES", help="what all may take (90)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes that share a row")
    parser.add_argument("--out", type=Path, default=Path("reports/machines"), metavar="DIR")
    return parser.parse_args(argv)


def _row_numbers(said: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in said.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{said!r} is not a list of rows, such as 5,7") from None


def _stopped(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
