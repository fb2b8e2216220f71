"""Which contracts about training hold for a stack in which nothing happens, or in which every rank does everything.

    python -m benchmarks.power [--only OPT-,PAR-]         # one process: three dead stacks, a case of each contract
    python -m benchmarks.power --ranks 2 [--only PAR-]    # a stack that enters no axis, on as many ranks

A comparison of a run with itself holds whatever happens. What a dead stack passes is a finding: power.toml has the
contracts for which it is argued, stack by stack. The case is the leanest rung of a contract's first. Exit code 1 where
another contract holds, or where one that is argued catches the stack after all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from contracts.contract import LAW, Contract
from contracts.court import record
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from contracts.law._bugs import dead

ARGUED = Path(__file__).with_name("power.toml")
STILL = ("StandsStill", "LearnsNothing", "MovesByNothing")
SPREAD = "EveryRankDoesAll"


def about_training(ranks: int, only: tuple[str, ...]) -> Iterator[tuple[Contract, str]]:
    """The contracts that ask for training on so many ranks, each with a case."""
    for contract in LAW.contracts.values():
        tier = "dist" if ranks > 1 else "unit"
        if "train" in contract.asks and contract.tier == tier and contract.id.startswith(only or ("",)):
            fitting = [case for case in contract.cases if contract.ranks(case) in (1, ranks)]
            yield from ((contract, contract.leanest(case)) for case in fitting[:1])


def held_alone(stack: str, asked: list[tuple[Contract, str]]) -> set[str]:
    """The contracts that hold for a dead stack in this process."""
    party = getattr(dead, stack)()
    return {contract.id for contract, case in asked if judge(contract, case, party).outcome == "holds"}


def held_by_ranks(stack: str, asked: list[tuple[Contract, str]], ranks: int) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        items = ",".join(f"{contract.id}[{case}]" for contract, case in asked)
        command = [sys.executable, "-P", "-m", "rankproof", "check", "--stack", f"{dead.__name__}:{stack}", "--ranks",
                   str(ranks), "--profile", items, "--report", folder]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not Path(folder, "run.jsonl").exists():
            raise SystemExit(f"{stack} was not judged: {done.stderr[-500:]}")
        run, _ = record.load(Path(folder, "run.jsonl"))
    return {result.id for result in run.results if result.outcome == "holds"}


def findings(stack: str, held: set[str], judged: set[str], argued: Mapping[str, str]) -> list[str]:
    """The contracts that hold and are not argued, and those that are argued and do not hold."""
    power = [f"{id} holds for {stack}: {LAW.contracts[id].promise[:90]}" for id in sorted(held - argued.keys())]
    return power + [f"{id} is argued, and catches {stack}" for id in sorted(argued.keys() & judged - held)]


def table() -> dict[str, dict[str, str]]:
    """Stack → contract → why it need not catch it."""
    rows = tomllib.loads(ARGUED.read_text(encoding="utf-8"))["argued"]
    return {
        stack: {id: row["because"] for row in rows if stack in row["stacks"] for id in row["contracts"]}
        for stack in (*STILL, SPREAD)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", default="", metavar="ID,ID", help="beginnings of ids")
    given = parser.parse_args()
    read_checks()
    asked = list(about_training(given.ranks, tuple(filter(None, given.only.split(",")))))
    argued, red = table(), 0
    for stack in STILL if given.ranks == 1 else (SPREAD,):
        held = held_alone(stack, asked) if given.ranks == 1 else held_by_ranks(stack, asked, given.ranks)
        found = findings(stack, held, {contract.id for contract, _ in asked}, argued[stack])
        red += len(found)
        line = f"{stack}: {len(asked) - len(held)} of {len(asked)} contracts catch it, {len(held)} hold"
        print("\n  ".join([line, *found]))  # noqa: T201
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
