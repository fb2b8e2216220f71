"""Stacks whose ranks cut the weights of a mixer in the wrong places: every shape fits, and nothing is missing.

N rows of the whole projections · n rows of one rank
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants.numeric._spread import Spread
from contracts.stacks.reference.model.blocks.common import Linear, local
from contracts.stacks.reference.model.blocks.mamba2 import Mamba2
from contracts.stacks.reference.parallel.collectives import all_gather
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel

GROUPS = 2  # of B and C in the models whose mixers are cut in two


class _Recut(TensorParallel):
    """Projections of a Mamba mixer, of which this rank applies other rows than its own."""

    def mixer(self, mixer: nn.Module) -> None:
        super().mixer(mixer)
        if isinstance(mixer, Mamba2) and mixer.wb.piece is None:
            self.recut([mixer.wx, mixer.wb, mixer.wc])

    def recut(self, projections: list[Linear]) -> None:
        raise NotImplementedError

    def whole(self, projection: Linear) -> Tensor:
        return all_gather(local(projection.weight), 0, self.group)


class _CutsThemTogether(_Recut):
    def recut(self, projections: list[Linear]) -> None:
        def of(index: int, x_BTD: Tensor) -> Tensor:
            whole_ND = torch.cat([self.whole(each) for each in projections])
            own_nD = whole_ND.chunk(self.size)[self.rank]
            rows = [len(local(each.weight)) for each in projections]
            return F.linear(x_BTD, torch.split(own_nD, rows)[index].to(x_BTD.dtype))

        for index, each in enumerate(projections):
            each.forward = lambda x_BTD, index=index: of(index, x_BTD)  # type: ignore[method-assign, misc]


@mutant(of="PAR-01a", case="tp2", says="on one rank", bugs=("SSM-27",))
class CutsAPackedProjectionEvenly(Spread):
    """x, B and C are one matrix, whose rows are shared as those of any other: the first rank has most of x and no C."""

    exchange = {"tensor_parallel": _CutsThemTogether}


class _StateMajor(_Recut):
    def recut(self, projections: list[Linear]) -> None:
        def of(projection: Linear, x_BTD: Tensor) -> Tensor:
            whole_ND = self.whole(projection)
            turned_ND = whole_ND.reshape(GROUPS, -1, whole_ND.shape[1]).transpose(0, 1).flatten(0, 1)
            return F.linear(x_BTD, turned_ND.chunk(self.size)[self.rank].to(x_BTD.dtype))

        for each in projections[1:]:
            each.forward = lambda x_BTD, each=each: of(each, x_BTD)  # type: ignore[method-assign, misc]


@mutant(of="PAR-01a", case="tp2", says="on one rank", bugs=("SSM-12",))
class CutsGroupsThatAreNotOutermost(Spread):
    """The rows of B and C run over the groups within each place of the state: a cut of them is a cut through groups."""

    exchange = {"tensor_parallel": _StateMajor}
