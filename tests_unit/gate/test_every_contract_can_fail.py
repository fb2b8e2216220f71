"""Every promise can fail: each has a stack, broken in one place, that it catches in the words it declares.

A crash is no kill, and a mutant proves nothing where the promise does not hold to begin with. Promises that only the
parser of a real Megatron-Core can hold the reference to are marked `megatron` and skipped where there is none, those
that need a CUDA device `gpu`.
"""

import pytest

from contracts.contract import Mutant
from contracts.court.judge import judge, try_mutant
from contracts.harness import parties, selftest
from contracts.instruments import accelerator
from contracts.spec import Party
from contracts.spec.presets import PRESETS
from contracts.spec.records import Result
from tests_unit._parties.bugs import LAW


@pytest.fixture(scope="session")
def reference() -> Party:
    return parties.load("reference")


def _needs(mutant: Mutant) -> pytest.MarkDecorator:
    if LAW.contracts[mutant.of].tier == "gpu":
        return pytest.mark.gpu
    if LAW.contracts[mutant.of].slow or LAW.contracts[mutant.of].of_numbers:
        return pytest.mark.slow  # each of the latter is quick, and there are many hundreds
    return pytest.mark.megatron if "read_pattern" in LAW.contracts[mutant.of].asks else pytest.mark.unit


@pytest.fixture(scope="session")
def table(reference: Party) -> list[Party]:
    """Who helps where Megatron-Core is not started: the table of its flags."""
    return [party for _, party in parties.assistants(reference, (), quick=True)]


@pytest.fixture
def assistants(request: pytest.FixtureRequest, reference: Party, table: list[Party]) -> list[Party]:
    """Who helps `rankproof selftest` too, Megatron-Core only where nobody else answers."""
    if request.node.get_closest_marker("megatron") is None:
        return table
    helping = [party for _, party in parties.assistants(reference, (), quick=False)]
    if len(helping) == len(table):
        pytest.skip("no Megatron-Core is installed (`make megatron`)")
    return helping


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_of_mutants_has_only_those_that_can_be_asked_here(seed: int) -> None:
    """PAT-10 needs a parser of hybrid patterns: its mutants bring one, the reference has none."""
    drawn = selftest.sample(selftest.part_of(LAW, ["PAT-10", "PAT-01"]), (), seed)
    assert [kill.of for kill in drawn.kills] == ["PAT-01"]
    assert drawn.word == "conformant"
    assert selftest.sample(selftest.part_of(LAW, ["PAT-10"]), (), seed).word == "nothing ran"


def test_every_contract_has_a_mutant() -> None:
    unguarded = [id for id in LAW.contracts if not LAW.mutants_of(id)]
    assert not unguarded, f"nothing shows that these can fail: {', '.join(unguarded)}"


def test_every_mutant_names_an_existing_contract_and_case() -> None:
    stray = [f"{each.name} of {each.of}[{each.case}]" for each in LAW.mutants
             if each.of not in LAW.contracts or each.case not in LAW.contracts[each.of].cases]  # fmt: skip
    assert not stray, f"mutants that meet no case: {', '.join(stray)}"


@pytest.fixture(scope="session")
def judged() -> dict[tuple[str, str], Result]:
    """The correct party, judged once for all the mutants of a case."""
    return {}


# What needs several ranks is put before the law by them: tests_dist.
IN_ONE_PROCESS = [each for each in LAW.mutants if LAW.contracts[each.of].tier != "dist"]


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=f"{each.of}-{each.case}-{each.name}", marks=_needs(each)) for each in IN_ONE_PROCESS],
)
def test_every_mutant_is_caught_with_its_declared_words(
    mutant: Mutant, reference: Party, assistants: list[Party], table: list[Party],
    judged: dict[tuple[str, str], Result],
) -> None:  # fmt: skip
    contract = LAW.contracts[mutant.of]
    if contract.tier == "gpu" and accelerator.name() is None:
        pytest.skip("torch sees no CUDA device (`make gpu` where one is)")
    # Without the mutation the case is asked by tests_unit/test_law.py, as test_every_case_is_asked.py makes sure. That
    # has no GPU and no Megatron-Core, so that what needs one is asked here.
    if contract.tier == "gpu" or assistants is not table:
        key = (mutant.of, mutant.case)
        if key not in judged:
            judged[key] = judge(contract, mutant.case, reference, assistants)
        sound = judged[key]
        if contract.tier == "gpu" and sound.outcome == "not run":
            pytest.skip(sound.words)  # a package is not installed
        # A promise about a launcher's own parser is not asked of the reference; its mutants bring the parser along.
        assert sound.outcome in ("holds", "not offered"), f"without the mutation: {sound.outcome}: {sound.words}"
    presets = repr(PRESETS)
    kill = try_mutant(mutant, contract, assistants)
    assert repr(PRESETS) == presets, f"{mutant.name} changed the presets for everyone after it"
    assert kill.fate == "killed", f"{kill.fate}: {kill.words}; expected words: {mutant.says}"
