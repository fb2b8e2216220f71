"""`explain` leads to the lines of a contract and to commands that judge it, for every contract."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from contracts.contract import LAW, Contract, Law
from contracts.court import profiles
from contracts.harness import places
from contracts.harness.cli import main
from contracts.harness.families import read_checks, read_mutants
from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import ROOT, rankproof

pytest.importorskip("torch")
pytestmark = pytest.mark.unit
read_checks()
read_mutants()


def _parsed(line: str) -> click.Context:
    program, command, *words = shlex.split(line)
    assert program == "rankproof"
    return main.commands[command].make_context(command, words)


def _faults(contract: Contract, case: str) -> str:
    """What is wrong with the two command lines of a case, or of a contract; empty where nothing is."""
    check, tried = (_parsed(line).params for line in places.commands(contract, case))
    law = Law()
    law.contracts, law.mutants = {contract.id: contract}, LAW.mutants_of(contract.id)
    asked = [item.case for item in profiles.plan(law, check["profile"]).items]
    several = contract.tier == "dist" and not contract.of_the_court
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


def _line(place: str) -> str:
    file, _, line = place.rpartition(":")
    return (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()


def test_each_place_is_the_line_where_it_begins() -> None:
    of_mutants = {each.name: _line(places.of_mutant(each)) for each in LAW.mutants}
    assert [name for name, line in of_mutants.items() if not line.startswith((f"class {name}", f"def {name}"))] == []
    others = {place for contract in LAW.contracts.values() for place in places.guarded(contract).values()}
    others |= {places.place(each.check) for each in LAW.contracts.values()}
    assert [each for each in others if not _line(each).startswith(("def ", "@"))] == []


def test_what_computes_a_number_is_named_by_the_mutants_that_change_it() -> None:
    """But where a mutant answers the question itself, or it changes something that is no function."""
    numbers = [
        each for each in LAW.contracts.values() if each.of_numbers and each.family in ("BLK", "MOE", "OPT", "PAR")
    ]
    named = [each.id for each in numbers if places.guarded(each)]
    assert len(named) > 0.95 * len(numbers)
    assert "Router.balance_loss" in places.guarded(LAW.contracts["MOE-05i"])
    assert "ShardedOptimizer.load" in places.guarded(LAW.contracts["CKPT-02h"])


@pytest.mark.parametrize("id", ["PAT-01", "TOPO-02", "PREC-05h"])
@pytest.mark.slow
def test_they_end_conformant(id: str, tmp_path: Path) -> None:
    for line in places.commands(LAW.contracts[id]):
        done = rankproof(*shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_of_one_gpu_are_not_tried_without_one(tmp_path: Path) -> None:
    [id, *_] = (each.id for each in LAW.contracts.values() if each.tier == "gpu")
    line = places.commands(LAW.contracts[id])[1]
    done = rankproof(*shlex.split(line)[1:], cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, "torch sees no CUDA device" in done.stderr) == (EXIT_CODES["incomplete"], True)
