"""`explain` leads to the lines of a contract and to commands that judge it, for every contract; so does every other
command that a message prints."""

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from contracts.contract import Contract, Law
from contracts.court import profiles
from contracts.court.wording import rerun
from contracts.harness import places
from contracts.harness.cli import main
from contracts.harness.gate import Gate
from contracts.instruments import accelerator
from contracts.spec.records import EXIT_CODES, Item, Plan, Result
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.bugs import LAW
from tests_unit._parties.running import ROOT, rankproof
from tests_unit.gate._reported import GREEN

pytest.importorskip("torch")


def _parsed(line: str) -> click.Context:
    program, command, *words = shlex.split(line)
    assert program == "rankproof"
    found = main.get_command(None, command)
    assert found is not None, command
    return found.make_context(command, words)


def _faults(contract: Contract, case: str) -> str:
    """What is wrong with the two command lines of a case, or of a contract; empty where nothing is."""
    check, tried = (_parsed(line).params for line in places.commands(contract, case))
    law = Law()
    law.contracts, law.mutants = {contract.id: contract}, LAW.mutants_of(contract.id)
    asked = [item.case for item in profiles.plan(law, check["profile"]).items]
    several = contract.tier == "dist"
    if case and asked != [case]:
        return f"judges {asked}"
    if (check["ranks"] is not None) != several or any(contract.ranks(each) > (check["ranks"] or 1) for each in asked):
        return f"ranks {check['ranks']}"
    if tried["said"] != (contract.id,) or tried["profile"] != contract.tier:
        return f"tries {tried['said']} in tier {tried['profile']}"
    return "" if any(contract.ranks(each.case) <= tried["ranks"] for each in law.tried()) else "tries no mutant"


def test_the_commands_that_explain_prints_judge_the_contract() -> None:
    faults = {f"{id}[{case}]": _faults(contract, case) for id, contract in LAW.contracts.items()
              for case in ("", *contract.cases)}  # fmt: skip
    assert len(faults) > 3000
    assert {item: fault for item, fault in faults.items() if fault} == {}


def _reruns(contract: Contract, case: str) -> Iterator[str]:
    """The command lines that a report and the gate print about one item."""
    item = Item(id=contract.id, case=case)
    gate = Gate(subject=Reference(), origin="reference", assistants=(), profile=contract.id, plan=Plan(items=(item,)))
    yield rerun(GREEN, Result(id=item.id, case=case, outcome="violated"))
    for words in (gate.missing_ranks(item), gate.missing_device(item)):
        yield from re.findall(r"`(rankproof [^`]+)`", words)


def test_every_contracts_own_commands_judge_it_on_enough_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "name", lambda: None)
    told, faults = 0, []
    for contract in LAW.contracts.values():
        law = Law()
        law.contracts = {contract.id: contract}
        several = contract.tier == "dist"
        for case in contract.asked:
            for line in _reruns(contract, case):
                told += 1
                asked = _parsed(line).params
                ranks = contract.ranks(case) if several else 1
                if [each.case for each in profiles.plan(law, asked["profile"]).items] != [case] or not (
                    max(2, ranks) <= (asked["ranks"] or 0) if several else asked["ranks"] is None
                ):
                    faults.append(line)
    assert told > 5000
    assert faults == []


_TARGETS = {*re.findall(r"^([a-z-]+)[a-z -]*:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}
_VARIABLES = {*re.findall(r"\b([A-Z]+) \?=", (ROOT / "Makefile").read_text(encoding="utf-8"))}
_PRINTED = re.compile(
    r"`((?:rankproof|make|torchrun|python -m) [^`\n]*)|((?<!`)\brankproof (?:[a-z-]+) [^`\n]*--[^`\n]*)"
)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module; what is filled in is a `?`."""
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts:
            yield each.value


def _unknown(line: str) -> list[str]:
    """The parts of a command in a message that do not exist."""
    program, *words = line.split()
    if program == "torchrun":
        return []  # by its parser, where the command is whole: tests_unit/ranks
    if program == "make":
        unknown = [each for each in words[:1] if each.rstrip("?") not in _TARGETS]
        return unknown + [each for each in re.findall(r"\b([A-Z]+)=", line) if each not in _VARIABLES]
    if program == "python":
        return [words[1]] if len(words) > 1 and importlib.util.find_spec(words[1]) is None else []
    command = main.get_command(None, words[0])
    if command is None:
        return [words[0]]
    known = {"-h", "--help"}.union(*([*each.opts, *each.secondary_opts] for each in command.params))
    before = words[: min((words.index(end) for end in ("-m", "--") if end in words), default=None)]
    return [each for each in before[1:] if each.startswith("--") and each.partition("=")[0].rstrip(".,;)") not in known]


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    found = {}
    for folder in ("contracts", "rankproof"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.parent.name not in ("gate", "argv"):  # whose cases are commands that are none
                for text in _texts(ast.parse(file.read_text(encoding="utf-8"))):
                    for quoted, plain in _PRINTED.findall(text):
                        found[f"{file.relative_to(ROOT)}: {quoted or plain}"] = _unknown(quoted or plain)
    assert len(found) > 40
    assert {where: unknown for where, unknown in found.items() if unknown} == {}


def _line(place: str) -> str:
    file, _, line = place.rpartition(":")
    return (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()


def test_each_file_and_line_that_explain_prints_is_where_the_function_begins() -> None:
    of_mutants = {each.name: _line(places.of_mutant(each)) for each in LAW.mutants}
    begins = r'(class |def |(\w+ = )?(with_attributes\()?"){}\b'
    assert [name for name, line in of_mutants.items() if not re.match(begins.format(name), line)] == []
    others = {place for contract in LAW.contracts.values() for place in places.guarded(contract).values()}
    others |= {places.place(each.check) for each in LAW.contracts.values()}
    assert [each for each in others if not _line(each).startswith(("def ", "@"))] == []


def test_explain_names_the_functions_that_a_contracts_mutants_break() -> None:
    """But where a mutant answers the question itself, or it changes something that is no function."""
    numbers = [
        each for each in LAW.contracts.values() if each.of_numbers and each.family in ("BLK", "MOE", "OPT", "PAR")
    ]
    assert len([each.id for each in numbers if places.guarded(each)]) > 0.95 * len(numbers)
    assert "Router.balance_loss" in places.guarded(LAW.contracts["MOE-05i"])
    assert "ShardedOptimizer.load" in places.guarded(LAW.contracts["CKPT-02h"])


@pytest.mark.parametrize("id", ["PAT-01", "TOPO-02", "PREC-05h"])
@pytest.mark.slow
def test_the_commands_of_explain_end_conformant(id: str, tmp_path: Path) -> None:
    for line in places.commands(LAW.contracts[id]):
        rankproof(*shlex.split(line)[1:], cwd=tmp_path, code=0)


def test_mutants_of_one_gpu_are_not_tried_without_one(tmp_path: Path) -> None:
    [id, *_] = (each.id for each in LAW.contracts.values() if each.tier == "gpu")
    line = places.commands(LAW.contracts[id])[1]
    done = rankproof(*shlex.split(line)[1:], cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, "torch sees no CUDA device" in done.stderr) == (EXIT_CODES["incomplete"], True)
