"""A stack without float64 is asked cases in float64 in float32, and the mutants of those contracts still die."""

from dataclasses import dataclass, replace

import pytest

from contracts.court.judge import judge
from contracts.court.narrowing import narrowed
from contracts.instruments import numerics
from contracts.spec import FEATURES, Abilities, Absence, Execution, codec
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.bugs import LAW

NO_FLOAT64 = Abilities(
    has=frozenset(FEATURES) - {"float64"},
    lacks=(Absence(features=frozenset({"float64"}), kind="stack", reason="it trains in float32"),),
)
STEPS = (
    "BLK-01i MOE-05j MOE-06a MOE-06b OPT-01b OPT-02a OPT-02b OPT-04a OPT-04b OPT-04c OPT-05d OPT-06b PAR-05a PAR-05b "
    "PAR-05k PAR-05l PAR-05i PAR-13 CKPT-01m"
)
BLOCKS = "PAT-12e BLK-01e BLK-03a BLK-03g BLK-06h BLK-06i BLK-06q BLK-06s BLK-06v MOE-01c MOE-05a MOE-05b MOE-08a"
QUICK = {*STEPS.split(), *BLOCKS.split()}  # of each kind of comparison; the others are slow
FAINT = {("MOE-01c", "sigmoid-faint"), ("BLK-04m", "slowest-decay")}
"""Their mutants add 1e-20 to a sum of 6e-9, and leave out a decay of 1e-4 a token."""
ASKED = [
    pytest.param(id, marks=pytest.mark.unit if id in QUICK else pytest.mark.slow)
    for id, each in LAW.contracts.items() if each.float32 and each.tier == "unit" and each.of_numbers
]  # fmt: skip


@pytest.mark.unit
def test_a_case_in_float32_differs_from_the_float64_case_in_dtype_only() -> None:
    torch = pytest.importorskip("torch")
    wide, whole = (numerics.array(torch.tensor([1.5, -2.0]).to(each)) for each in (torch.float64, torch.int64))
    narrow = narrowed(wide)
    assert (narrow.dtype, numerics.tensor(narrow).tolist()) == ("float32", [1.5, -2.0])
    double = Execution(precision="float64")
    single = replace(double, precision="float32")
    assert narrowed(double) == narrowed(codec.loads(Execution, codec.dumps(double))) == single
    assert narrowed((1, wide)) == (1, narrow)
    assert narrowed({"a": whole, "b": (double,)}) == {"a": whole, "b": (single,)}
    assert narrowed(_Asked(first=whole, second={"x": wide})) == _Asked(first=whole, second={"x": narrow})
    kept = (
        narrow,
        whole,
        single,
        (1, whole),
        {"a": single},
        replace(double, precision="fp16"),
        _Asked(first=1, second=narrow),
        _Asked,
        "float64",
        None,
    )
    for each in kept:
        assert narrowed(each) is each, each


@dataclass(frozen=True)
class _Asked:
    first: object
    second: object


def _narrow(stack: type) -> object:
    return type(stack.__name__, (stack,), {"abilities": NO_FLOAT64})()


def _needs_float64(id: str, case: str) -> bool:
    """Whether a case is not put to a stack without float64."""
    return "float64" in LAW.contracts[id].features(case) or (id, case) in FAINT


@pytest.mark.parametrize("id", ASKED)
def test_the_reference_without_float64_holds_and_the_record_says_float32(id: str) -> None:
    contract = LAW.contracts[id]
    cases = [case for case in contract.cases if not _needs_float64(id, case)]
    dtypes = set()
    for case in (cases[0], contract.leanest(cases[-1])):
        result = judge(contract, case, _narrow(Reference))  # type: ignore[arg-type]  # made here
        assert (result.outcome, result.words) == ("holds", "")
        dtypes.add(result.dtype)
    assert "float32" in dtypes or id not in QUICK


@pytest.mark.parametrize("id", ASKED)
def test_mutants_are_killed_in_float32_too(id: str) -> None:
    alive = []
    for mutant in (each for each in LAW.tried() if each.of == id and not _needs_float64(id, each.case)):
        result = judge(LAW.contracts[id], mutant.case, _narrow(mutant.make))  # type: ignore[arg-type]  # made here
        if result.outcome != "violated":
            alive.append(f"{mutant.name} in {mutant.case}: {result.outcome} {result.words[:200]}")
    assert not alive


@pytest.mark.unit
def test_a_stack_with_float64_is_asked_in_float64() -> None:
    result = judge(LAW.contracts["OPT-04b"], "dense", Reference())
    assert (result.outcome, result.dtype) == ("holds", "")


@pytest.mark.unit
def test_only_a_stack_without_float64_is_asked_in_float32() -> None:
    assert NO_FLOAT64.absence({"float64"}, ("train",)) is not None
    limited = Abilities(
        has=frozenset({"float64"}),
        lacks=(
            Absence(features=frozenset({"float64"}), kind="stack", reason="its trainer", asked=frozenset({"train"})),
        ),
    )
    assert limited.absence({"float64"}, ("run_block",)) is None
    assert limited.absence({"float64"}, ("built", "train")) is not None
