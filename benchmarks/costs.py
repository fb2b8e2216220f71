"""CPU seconds of the law on the reference, of its mutants, of the project's own tests.

    python -m benchmarks.costs imports
    python -m benchmarks.costs law --profile launch,machine,numeric
    python -m benchmarks.costs selftest --only MOE
    python -m benchmarks.costs tests -m unit tests_unit/gate
    python -m benchmarks.costs tests --every 20             # a sample: of each file, each 20th test
    python -m benchmarks.costs                              # all of it, an hour

Prints Markdown: the whole, what each family or file takes and, of tests, each kind; the slowest twenty items, and what
is done again and again. Items that a sample did not run count as the mean of what it ran of that file.
`--save FILE` keeps the items as JSON lines; `read FILE` prints their tables again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks._spent import EVERY, FILE, Meter, Spent

SLOWEST = 20
MARKS = "unit or slow or megatron or titan or transformers or kernels or registry or torchrun"  # those of `make test`
KINDS = {  # part of a test's name → what it does
    "test_law.py::": "the law on the reference",
    "test_every_contract_can_fail.py::": "mutants",
    "/ranks/": "pytest under torchrun",
}
IMPORTS = {
    "an interpreter": "pass",
    "pytest": "import pytest",
    "hypothesis": "import hypothesis",
    "the command line": "import contracts.harness.cli",
    "the law": "from contracts.harness.families import read_checks; read_checks()",
    "torch": "import torch",
    "the law and its mutants": "from contracts.harness.families import *; read_checks(); read_mutants()",
    "pipelines of torch": "import torch.distributed.pipelining",
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("imports", "law", "selftest", "tests", "read"))
    parser.add_argument("--profile", default="launch,machine,numeric")
    parser.add_argument("--only", default="", metavar="PREFIX", help="of the self-test, ids that begin so")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the tests, each N-th of a file")
    parser.add_argument("--save", type=Path, metavar="FILE")
    asked, words = parser.parse_known_args(argv)
    # as `make` and `rankproof selftest --jobs` run it: a second thread only waits, and compiled modules are kept
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    subjects: dict[str, Callable[[], list[Spent]]] = {
        "imports": imports,
        "law": lambda: law(asked.profile),
        "selftest": lambda: selftest(asked.only),
        "tests": lambda: tests(words or ["-m", MARKS], asked.every),
        "read": lambda: [Spent(**json.loads(line)) for path in words for line in Path(path).read_text().splitlines()],
    }
    for name in [asked.what] if asked.what else [name for name in subjects if name != "read"]:
        found = subjects[name]()
        if asked.save is not None:
            with asked.save.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(each)) + "\n" for each in found)
        print(f"## {name} {' '.join(words)}\n\n{table(found)}")  # noqa: T201
    return 0


def imports() -> list[Spent]:
    """Each in a new interpreter; the second of two starts, so that the files are in memory and compiled."""
    meter, found = Meter(), []
    for name, words in IMPORTS.items():
        for _ in range(2):
            meter.restart()
            subprocess.run([sys.executable, "-c", words], check=True)
        found.append(meter.item(name))
    return found


def law(profile: str) -> list[Spent]:
    """Each item of a profile on the reference, as `rankproof check` judges it in one process."""
    from contracts.contract import LAW
    from contracts.court import profiles
    from contracts.harness import parties
    from contracts.harness.families import read_checks
    from contracts.harness.gate import Gate

    meter = Meter()
    read_checks()
    plan, subject = profiles.plan(LAW, profile), parties.load("reference")
    gate = Gate(
        subject=subject, origin="reference", assistants=parties.assistants(subject, (), quick=True), profile=profile,
        plan=plan,
    )  # fmt: skip
    meter.watch()
    found = [meter.item("imports")]
    for item in plan.items:
        gate.judge(item)
        found.append(meter.item(str(item)))
    _print_calls(meter)
    return found


def selftest(only: str) -> list[Spent]:
    """Each judgement of the self-test, as `rankproof selftest` makes it in one process."""
    from contracts.contract import LAW
    from contracts.harness import parties
    from contracts.harness import selftest as self_test
    from contracts.harness.families import read_checks
    from contracts.spec.records import Kill, Result

    meter = Meter()
    read_checks()
    part = self_test.part_of(LAW, [id for id in LAW.contracts if id.startswith(only)])
    meter.watch()
    found = [meter.item("imports")]

    def tell(each: Result | Kill) -> None:
        name = str(each.item) if isinstance(each, Result) else f"{each.of}[{each.case}] {each.mutant}"
        found.append(meter.item(name))

    helping = [party for _, party in parties.assistants(parties.load("reference"), (), quick=True)]
    self_test.run(part, helping, tell)
    _print_calls(meter)
    return found


def tests(words: list[str], every: int) -> list[Spent]:
    """Collection and each test of a pytest run in one process, or each `every`-th test of a file."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "spent.jsonl")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "benchmarks._spent", *words]
        subprocess.run(command, env={**os.environ, FILE: str(file), EVERY: str(every)}, stdout=sys.stderr, check=False)
        return [Spent(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def table(found: Iterable[Spent]) -> str:
    """The whole, the kinds, the groups and the slowest."""
    found = list(found)
    lines = ["| group | items | CPU, s | of it in children | processes started |", "|---|---|---|---|---|"]
    for name, members in [("all", found), *_largest_first(_kind, found), *_largest_first(_group, found)]:
        cpu, children = sum(each.cpu * each.of for each in members), sum(each.children * each.of for each in members)
        items, starts = sum(each.of for each in members), sum(each.starts * each.of for each in members)
        lines.append(f"| {name} | {items} | {cpu:.1f} | {children:.1f} | {starts} |")
    if len({_group(each) for each in found}) < len(found):
        lines += ["", "| slowest | CPU, s | of it in children | wall, s |", "|---|---|---|---|"]
        for each in sorted(found, key=lambda each: -each.cpu)[:SLOWEST]:
            lines.append(f"| {each.name} | {each.cpu:.2f} | {each.children:.2f} | {each.wall:.2f} |")
    return "\n".join(lines) + "\n"


def _largest_first(of: Callable[[Spent], str], found: list[Spent]) -> list[tuple[str, list[Spent]]]:
    groups: dict[str, list[Spent]] = defaultdict(list)
    for each in found:
        groups[of(each)].append(each)
    groups.pop("", None)
    return sorted(groups.items(), key=lambda pair: -sum(each.cpu * each.of for each in pair[1]))


def _kind(spent: Spent) -> str:
    """The work of a test; nothing for what is no test."""
    if "::" not in spent.name:
        return ""
    if "::fixture " in spent.name:
        return "*made once for many tests*"
    known = (f"*{kind}*" for part, kind in KINDS.items() if part in spent.name)
    return next(known, "*tests that start processes*" if spent.starts else "*tests of this process*")


def _group(spent: Spent) -> str:
    """The file of a test, the family of an item; a name of its own otherwise."""
    if "::" in spent.name:
        return spent.name.split("::", maxsplit=1)[0]
    return spent.name.split("-", maxsplit=1)[0] if "[" in spent.name else spent.name


def _print_calls(meter: Meter) -> None:
    lines = ["| done again and again | calls | different | CPU, s | of it for what was done before |",
             "|---|---|---|---|---|"]  # fmt: skip
    for label, calls in meter.calls.items():
        lines.append(f"| {label} | {calls.number} | {len(calls.seen)} | {calls.seconds:.1f} | {calls.again:.1f} |")
    print("\n".join(lines) + "\n")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
