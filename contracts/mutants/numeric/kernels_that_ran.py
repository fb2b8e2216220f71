"""Blocks that ran something else than they say, or change their numbers with a package that is not there."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from contracts.contract import mutant
from contracts.instruments import numerics
from contracts.mutants.numeric._exchanged import Exchanged
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.recipe import Recipe
from contracts.spec.seams import Facts, Wish
from contracts.stacks.reference.model.blocks.moe import Backend, Experts
from contracts.stacks.reference.stack import Reference


class _Loops(Experts):
    def backend(self, x: Tensor) -> Backend:
        return "loop"


@mutant(of="KRN-01g", case="experts", says="experts ran as native, and is said to run as torch-grouped")
class LoopsWhereItSaysGrouped(Exchanged):
    """The grouped kernel is switched off inside the block, below the place where it is recorded."""

    exchange = {"experts": _Loops}


@mutant(of="KRN-01g", case="experts", says="experts ran as torch-grouped, and is said to run as native")
class ForgetsTheGroupedKernel(Reference):
    """The rows know of no grouped kernel, and it runs."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return ["no grouped kernel is built in"]


@mutant(of="KRN-01g", case="experts-fp8", says="experts ran as native, and is said to run as torch-grouped")
@mutant(of="KRN-01g", case="experts-fp32", says="experts ran as native, and is said to run as torch-grouped")
class SaysGroupedOfEverything(Reference):
    """The choice is recorded before dtype and FP8 are looked at."""

    def closed_to_grouped(self, recipe: Recipe, facts: Facts) -> list[str]:
        return []


@mutant(of="KRN-01g", case="scan", says="sites that ran are [], expected ['scan']")
@mutant(of="PREC-03a", case="projections", says="attention ran as None, expected native")
class NotesNothing(Reference):
    """What ran is not recorded."""

    def run_block(self, call: BlockCall) -> BlockRun:
        return replace(super().run_block(call), kernels={})


@mutant(of="KRN-01g", case="attention", says="attention ran as transformer-engine, and is said to run as native")
@mutant(of="PREC-03a", case="dense", says="mlp ran as transformer-engine, expected native")
class NotesTheWish(Reference):
    """What was asked for is recorded as what ran: the receipt claims a kernel that is not installed."""

    def run_block(self, call: BlockCall) -> BlockRun:
        run = super().run_block(call)
        wished = {site: wish.kernel for site, wish in call.kernels.items() if site in run.kernels}
        return replace(run, kernels={**run.kernels, **wished})


@mutant(of="PREC-03a", case="shared-expert", says="transformer-engine is not there, and with it asked for y differs")
class PreparesForTheBridge(Reference):
    """Weights are rounded to bfloat16 for the bridge before it is known whether it can be built."""

    def run_block(self, call: BlockCall) -> BlockRun:
        if any(wish.kernel == "transformer-engine" for wish in call.kernels.values()):
            held = {
                name: each.to(torch.bfloat16).to(each.dtype) for name, each in numerics.tensors(call.weights).items()
            }
            call = replace(call, weights=numerics.arrays(held))
        return super().run_block(call)


@mutant(of="PREC-03a", case="experts", says="with it asked for gradient mixer.experts.w1 differs")
class ScalesItsGradientsForTheBridge(Reference):
    """A bridge adds up weight gradients in a buffer of its own; the fallback divides by its count all the same."""

    def run_block(self, call: BlockCall) -> BlockRun:
        run = super().run_block(call)
        if not any(wish.kernel == "transformer-engine" for wish in call.kernels.values()):
            return run
        name = "mixer.experts.w1"
        halved = {**run.gradients, name: numerics.array(numerics.tensor(run.gradients[name]) / 2)}
        return replace(run, gradients=halved)


@mutant(of="PREC-03b", case="dense", says="mlp ran as native, expected transformer-engine")
class BridgesInNameOnly(Reference):
    """The bridge is chosen and built, and the own layer is what the block calls."""

    def run_block(self, call: BlockCall) -> BlockRun:
        return super().run_block(replace(call, kernels={site: Wish(kernel="native") for site in call.kernels}))
