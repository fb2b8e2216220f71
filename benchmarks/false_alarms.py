"""Correct stacks, drawn by seed, judged on a drawn sample of cases: nothing may be red.

    python -m benchmarks.false_alarms                        # 300 stacks, 12 cases each
    python -m benchmarks.false_alarms --first 41 --count 1   # the stack of one seed again
    python -m benchmarks.false_alarms --time 600             # what ten minutes allow; the next run continues from there

A drawn stack is `contracts.stacks.rewritten.drawn(seed)`. The cases are of one process, two in three about numbers, on
every recipe, dtype and layout that contracts have. The results are in the journal (`--out`), and cases in it are not
judged again as long as the files of the package are the same. The exit code is 1 where a case is violated or broken.
"""

import argparse
import functools
import hashlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import contracts
from contracts.contract import LAW, Contract
from contracts.court.judge import judge
from contracts.harness.operators.forked import forked
from contracts.harness.operators.reach import asked, content

JOURNAL = "false_alarms.jsonl"
REWRITTEN = Path(contracts.__file__).parent / "stacks" / "rewritten.py"
STACK_S = 600.0
RED = ("violated", "broken")


def sample(contracts: Sequence[Contract], seed: int, cases: int) -> list[tuple[Contract, str]]:
    """The cases that a drawn stack is judged on, each of another contract."""
    draw = random.Random(f"cases {seed}")
    numbers = [each for each in contracts if each.of_numbers]
    others = [each for each in contracts if not each.of_numbers]
    chosen = [*draw.sample(numbers, cases - cases // 3), *draw.sample(others, cases // 3)]
    return [(each, draw.choice(list(each.asked))) for each in chosen]


def _judged(seed: int, chosen: Sequence[tuple[Contract, str]]) -> Iterator[dict[str, Any]]:
    from contracts.harness import parties
    from contracts.stacks.rewritten import drawn

    stack = drawn(seed)
    helping = [party for _, party in parties.assistants(stack, (), quick=True)]
    for contract, case in chosen:
        result = judge(contract, case, stack, helping)
        words = result.words[:600] if result.outcome in RED else ""
        yield {"seed": seed, "stack": stack.name, "item": str(result.item), "outcome": result.outcome, "words": words}


def one(seed: int, cases: int) -> dict[str, Any]:
    """A stack and its outcomes, as a row of the journal. A fork that ends before its last case is red itself."""
    chosen = sample([*asked(LAW)], seed, cases)
    rows = forked(functools.partial(_judged, seed, chosen), seconds=STACK_S)
    red = [row for row in rows if row["outcome"] in RED]
    if len(rows) < len(chosen):
        red.append({"item": "", "outcome": "broken", "words": f"ended after {len(rows)} of {len(chosen)} cases"})
    held = sum(row["outcome"] == "holds" for row in rows)
    return {"content": _key(), "seed": seed, "cases": cases, "held": held, "judged": len(rows), "red": red,
            "stack": rows[0]["stack"] if rows else ""}  # fmt: skip


def _key() -> str:
    """The files that decide a row of the journal."""
    return f"{content()}{hashlib.sha256(REWRITTEN.read_bytes()).hexdigest()[:12]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="stacks")
    parser.add_argument("--cases", type=int, default=12, metavar="N", help="cases of each")
    parser.add_argument("--time", type=float, metavar="S", help="begin no further stack after S seconds")
    parser.add_argument("--out", type=Path, default=Path("reports/false-alarms"), metavar="FOLDER")
    given = parser.parse_args()
    import torch

    from contracts.harness.families import read_checks

    read_checks()
    torch.set_num_threads(1)  # a fork loses the threads that torch has started
    given.out.mkdir(parents=True, exist_ok=True)
    file, until = given.out / JOURNAL, time.monotonic() + (given.time or float("inf"))
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    known = {(row["seed"], row["cases"]): row for row in rows if row["content"] == _key()}
    found = []
    for seed in range(given.first, given.first + given.count):
        if time.monotonic() > until:
            break
        row = known.get((seed, given.cases)) or one(seed, given.cases)
        if (seed, given.cases) not in known:
            with file.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(row) + "\n")
        found.append(row)
        for red in row["red"]:
            print(f"{red['outcome']} {red['item']} on {row['stack']} (seed {seed}): {red['words']}", flush=True)  # noqa: T201
    held, bad = sum(row["held"] for row in found), sum(len(row["red"]) for row in found)
    print(f"{len(found)} correct stacks, {held} cases held, {bad} red")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
