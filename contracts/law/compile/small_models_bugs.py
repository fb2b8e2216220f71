"""Compiled code that sums over ranks otherwise than eager code."""

import torch

from contracts.law._bugs.numeric import TensorParallel, broken, collectives


@broken(TensorParallel, "leave", "COMP-07c[borrowed-tp2-sp-ep2-etp1]: compiled, the gradient of")
def sums_a_compiled_transformer_twice(leave, self, y_BTD):
    """Compiled code uses an all-reduce whose backward is an all-reduce; the eager one passes gradients through."""
    return leave(self, collectives.scale_gradient(y_BTD, self.size) if torch.compiler.is_compiling() else y_BTD)
