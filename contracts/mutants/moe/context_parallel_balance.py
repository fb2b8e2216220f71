"""Mutants of `checks.moe.context_parallel_balance`."""

from __future__ import annotations

from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread, routed
from contracts.stacks.reference.model.blocks.common import Output
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer


# balance
class _BalancesRuns(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()
        for moe in routed(model):
            moe.router.sequence = None
        return model


@mutant(of="MOE-05g", case="cp2", says="aux is", bugs=("AUX-15",))
class BalancesEachRunByItself(Spread):
    """f counts the tokens of one rank only, so the loss asks for balance within each part of a row."""

    trains = _BalancesRuns


class _WholeLossOfEach(ParallelTrainer):
    def build(self) -> Model:
        model, ranks = super().build(), self.execution.degrees.cp

        def whole(_: nn.Module, args: object, out: Output) -> Output:
            return out._replace(
                losses={name: collectives.scale_gradient(each, ranks) for name, each in out.losses.items()}
            )

        for moe in routed(model):
            moe.register_forward_hook(whole)
        return model


@mutant(of="MOE-05g", case="cp2", says="loss agrees, norm is", bugs=("AUX-01",))
class TakesTheBalanceOfARunForThatOfTheRow(Spread):
    """The reported losses are parts and add up right; on each rank the gradients are those of a whole loss."""

    trains = _WholeLossOfEach


class _ToldByRuns(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: values[name] for name in ("z",) if name in values}
        return super().over_parts(values) | {
            name: collectives.sum_over_ranks(each, self.mesh.group("rows")) for name, each in own.items()
        }


@mutant(of="MOE-05g", case="cp2", says="z is", bugs=("AUX-15",))
class TellsTheZLossOfOneRun(Spread):
    """The reported z loss is summed over data-parallel ranks alone."""

    trains = _ToldByRuns


class _BiasByRuns(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: each.clone() for name, each in values.items() if name.endswith(".counts")}
        return super().over_parts(values) | own


@mutant(of="MOE-06g", case="cp2", says="assignments, expected 192")
class MovesBiasesByTheTokensOfOneRank(Spread):
    """Each rank moves its copy of a bias by the tokens of its own part of the row, so the copies drift apart."""

    trains = _BiasByRuns


class _BiasTwice(ParallelTrainer):
    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        found = super().over_parts(values)
        return {
            name: each * self.execution.degrees.cp if name.endswith(".counts") else each for name, each in found.items()
        }


@mutant(of="MOE-06g", case="cp2", says="assignments, expected 192")
class CountsAssignmentsOnEachRankOfARow(Spread):
    """Over-correction: the counts of a row are summed over ranks that have each summed them already."""

    trains = _BiasTwice
