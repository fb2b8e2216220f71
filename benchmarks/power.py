"""Which contracts about training hold for a stack in which nothing happens, or in which every rank does everything.

    python -m benchmarks.power [--only OPT-,PAR-]         # one process: three dead stacks, a case of each contract
    python -m benchmarks.power --ranks 2 [--only PAR-]    # a stack that enters no axis, on as many ranks

A comparison of a run with itself holds whatever happens. Each contract that a dead stack passes is a finding:
power.toml has the contracts for which it is argued, stack by stack. An argument about ranks names its witness, a
contract that must be violated by the same stack on every axis that the argued contract has. The case is the leanest
rung of a contract's first. Exit code 1 if another contract holds, if one that is argued catches the stack after all, if
a witness does not, or if a contract is neither violated nor holds.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import LAW
from contracts.court import record
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from contracts.law._bugs import dead
from contracts.spec import Execution
from contracts.spec.records import Outcome

ARGUED = Path(__file__).with_name("power.toml")
STILL = ("StandsStill", "LearnsNothing", "MovesByNothing")
SPREAD = "EveryRankDoesAll"


Outcomes = Mapping[tuple[str, str], Outcome]
"""Contract and case → what became of it."""


@dataclass(frozen=True, kw_only=True)
class Argued:
    because: str
    witness: str = ""


def about_training(ranks: int, only: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The contracts that ask for training on so many ranks, each with a case."""
    for id, contract in LAW.contracts.items():
        tier = "dist" if ranks > 1 else "unit"
        if "train" in contract.asks and contract.tier == tier and id.startswith(only or ("",)):
            yield from fitting(id, ranks)[:1]


def fitting(id: str, ranks: int) -> list[tuple[str, str]]:
    """The cases of a contract on so many ranks, each on its leanest rung."""
    contract = LAW.contracts[id]
    return [(id, contract.leanest(case)) for case in contract.cases if contract.ranks(case) in (1, ranks)]


def alone(stack: str, asked: Iterable[tuple[str, str]]) -> Outcomes:
    """What this process makes of a dead stack."""
    party = getattr(dead, stack)()
    return {(id, case): judge(LAW.contracts[id], case, party).outcome for id, case in asked}


def by_ranks(stack: str, asked: Iterable[tuple[str, str]], ranks: int) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        items = ",".join(f"{id}[{case}]" for id, case in asked)
        command = [sys.executable, "-P", "-m", "rankproof", "check", "--stack", f"{dead.__name__}:{stack}", "--ranks",
                   str(ranks), "--profile", items, "--report", folder]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not Path(folder, "run.jsonl").exists():
            raise SystemExit(f"{stack} was not judged: {done.stderr[-500:]}")
        run, _ = record.load(Path(folder, "run.jsonl"))
    return {(result.id, result.case): result.outcome for result in run.results}


def findings(stack: str, outcomes: Outcomes, argued: Mapping[str, Argued]) -> list[str]:
    """The contracts that hold and are not argued, those that are argued and do not hold, and what was not judged."""
    ids = {outcome: {id for (id, _), each in outcomes.items() if each == outcome} for outcome in outcomes.values()}
    held = ids.pop("holds", set()) - {each.witness for each in argued.values()}
    caught = ids.pop("violated", set())
    return [
        *(f"{id} holds for {stack}: {LAW.contracts[id].promise[:90]}" for id in sorted(held - argued.keys())),
        *(f"{id} is argued, and catches {stack}" for id in sorted(argued.keys() & caught)),
        *(f"{id} is {outcome} for {stack}" for outcome, each in ids.items() for id in sorted(each)),
    ]


def unwitnessed(stack: str, outcomes: Outcomes, argued: Mapping[str, Argued], ranks: int) -> list[str]:
    """The contracts that are argued with a witness that does not catch the stack on each of their axes."""
    seen: dict[str, set[str]] = {}
    for (id, case), outcome in outcomes.items():
        if outcome == "violated":
            seen.setdefault(id, set()).update(axes(LAW.contracts[id].asked[case]))
    found = []
    for id in sorted(argued.keys() & {id for id, _ in outcomes}):
        witness = argued[id].witness
        lacks = axes(LAW.contracts[id].asked[case] for _, case in fitting(id, ranks)) - seen.get(witness, set())
        if lacks and witness:
            found.append(f"{id} is argued with {witness}, which does not catch {stack} on {', '.join(sorted(lacks))}")
    return found


def axes(values: Iterable[object]) -> set[str]:
    """The axes of parallelism in the executions of some cases."""
    found = set()
    for value in values:
        if isinstance(value, tuple):
            found |= axes(value)
        elif isinstance(value, Execution):
            degrees, own = value.degrees, value.layout == "own-axis"
            found |= {axis for axis in ("tp", "cp", "ep", "pp") if getattr(degrees, axis) > 1}
            found |= {"fsdp"} if value.fsdp else set()
            found |= {"interleaved"} if value.schedule == "interleaved" else set()
            rest = value.world // (degrees.tp * degrees.cp * degrees.pp * (degrees.ep if own else 1))
            found |= {"dp"} if rest > 1 else set()
    return found


def table(ranks: int = 1) -> dict[str, dict[str, Argued]]:
    """Stack → contract → why it need not catch it on so many ranks."""
    rows = tomllib.loads(ARGUED.read_text(encoding="utf-8"))["argued"]
    return {
        stack: {
            id: Argued(because=row["because"], witness=row.get("witness", ""))
            for row in rows if stack in row["stacks"] and ranks in row.get("ranks", [ranks]) for id in row["contracts"]
        }
        for stack in (*STILL, SPREAD)
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", default="", metavar="ID,ID", help="beginnings of ids")
    given = parser.parse_args()
    read_checks()
    ranks, argued, red = given.ranks, table(given.ranks), 0
    asked = list(about_training(ranks, tuple(filter(None, given.only.split(",")))))
    for stack in STILL if ranks == 1 else (SPREAD,):
        if ranks == 1:
            outcomes = alone(stack, asked)
        else:
            witnesses = sorted({each.witness for each in argued[stack].values()} - {""})
            beside = [each for id in witnesses for each in fitting(id, ranks)]
            outcomes = by_ranks(stack, dict.fromkeys((*asked, *beside)), ranks)
        found = findings(stack, outcomes, argued[stack]) + unwitnessed(stack, outcomes, argued[stack], ranks)
        red += len(found)
        caught = {id for (id, _), outcome in outcomes.items() if outcome == "violated"}
        line = f"{stack}: {len(caught)} of {len({id for id, _ in outcomes})} contracts catch it"
        print("\n  ".join([line, *found]))  # noqa: T201
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
