"""Blocks that run another kernel than their rows state."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.kernel_selection import Facts
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.blocks.moe import Backend, Experts
from contracts.stacks.reference.stack import Reference


class _Loops(Experts):
    def backend(self, x: Tensor) -> Backend:
        return "loop"


@mutant(of="KRN-01g", case="experts", says="experts ran as native, but its row says torch-grouped")
class LoopsWhereItSaysGrouped(Exchanged):
    """The grouped kernel is switched off inside the block, below the place where the choice is recorded."""

    exchange = {"experts": _Loops}


@mutant(of="KRN-01g", case="experts", says="experts ran as torch-grouped, but its row says native")
class ForgetsTheGroupedKernel(Reference):
    """The rows have no grouped kernel, but it runs."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return ["no grouped kernel is built in"]


@mutant(of="KRN-01g", case="experts-fp8", says="experts ran as native, but its row says torch-grouped")
@mutant(of="KRN-01g", case="experts-fp32", says="experts ran as native, but its row says torch-grouped")
class SaysGroupedOfEverything(Reference):
    """Records the choice before checking dtype and FP8."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return []


@mutant(of="KRN-01g", case="scan", says="sites that ran are [], expected ['scan']")
class NotesNothing(Reference):
    """Does not record what ran."""

    def run_block(self, call: BlockCall) -> BlockRun:
        return replace(super().run_block(call), kernels={})


@mutant(of="KRN-01g", case="attention", says="attention ran as transformer-engine, but its row says native")
class NotesTheWish(Reference):
    """Records the requested kernel as the one that ran: the receipt claims a kernel that is not installed."""

    def run_block(self, call: BlockCall) -> BlockRun:
        run = super().run_block(call)
        wished = {site: wish.kernel for site, wish in call.kernels.items() if site in run.kernels}
        return replace(run, kernels={**run.kernels, **wished})
