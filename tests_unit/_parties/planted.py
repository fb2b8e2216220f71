"""The reference with one fault, in a numeric case that no mutant names: only the law's own tests can find it."""

from dataclasses import replace

from contracts.court.judge import judge
from contracts.instruments import numerics
from contracts.spec import BlockCall, BlockRun
from contracts.spec.records import Item
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.bugs import LAW

NAMED = {(mutant.of, mutant.case) for mutant in LAW.mutants}
WHERE = next(
    Item(id=id, case=case)
    for id, contract in LAW.contracts.items()
    if contract.asks == ("block_weights", "run_block") and contract.tier == "unit" and not contract.slow
    for case in contract.cases
    if (id, case) not in NAMED
)
"""The case."""


class Listens(Reference):
    """Keeps the calls that it hears."""

    def __init__(self) -> None:
        self.heard: list[BlockCall] = []

    def run_block(self, call: BlockCall) -> BlockRun:
        self.heard.append(call)
        return super().run_block(call)


class Planted(Reference):
    """Adds one to every output of the first call of that case, and of no other."""

    def __init__(self) -> None:
        listens = Listens()
        judge(LAW.contracts[WHERE.id], WHERE.case, listens)
        self._calls = listens.heard

    def run_block(self, call: BlockCall) -> BlockRun:
        ran = super().run_block(call)
        return replace(ran, y=numerics.array(numerics.tensor(ran.y) + 1)) if call == self._calls[0] else ran
