"""Mutants of `checks.compile.small_models`."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread
from contracts.stacks.reference.parallel import collectives
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel


class _WeighsCompiled(TensorParallel):
    def leave(self, y_BTD: Tensor) -> Tensor:
        return super().leave(collectives.scale_gradient(y_BTD, self.size) if torch.compiler.is_compiling() else y_BTD)


@mutant(of="COMP-07c", case="borrowed-tp2-sp-ep2-etp1", says="compiled, the gradient of")
class SumsACompiledTransformerTwice(Spread):
    """Compiled code uses an all-reduce whose backward is an all-reduce; the eager one passes gradients through."""

    exchange = {"tensor_parallel": _WeighsCompiled}
