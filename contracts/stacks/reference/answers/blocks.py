"""One block by itself: the answers of `Reference` about single blocks (spec/blocks.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from contracts.instruments import numerics
from contracts.spec import BlockCall, BlockRun, Element, Facts, Mode, Recipe, Seam, Shape, Site, Wish, refuse
from contracts.spec.delta_rule import DeltaCall, DeltaRun
from contracts.stacks.reference.answers.base import BuiltOfParts

if TYPE_CHECKING:  # torch is loaded when a block is asked for, not when the stack is introduced
    from torch import Tensor, nn

    from contracts.stacks.reference.model.blocks import Output, Packing, State
    from contracts.stacks.reference.model.parts import Parts


class BlockAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        import torch

        with torch.device("meta"):
            held = _branch(recipe, layer, mode, self.parts()).state_dict()
        return {
            name: Shape(dtype=cast(Element, str(each.dtype).removeprefix("torch.")), shape=tuple(each.shape))
            for name, each in held.items()
        }

    def kernel_facts(self) -> Facts:
        raise NotImplementedError  # KernelSelectionAnswers'

    def seams(self, recipe: Recipe, mode: Mode, requested: Mapping[Site, Wish], facts: Facts) -> tuple[Seam, ...]:
        raise NotImplementedError  # KernelSelectionAnswers'

    def run_block(self, call: BlockCall) -> BlockRun:
        from contracts.stacks.kit.exact_kernels import exact_kernels
        from contracts.stacks.reference.kernels.substitution import substitute_kernels

        held = build_block(call, self.parts())
        chosen = self.seams(call.recipe, call.mode, call.kernels, self.kernel_facts()) if call.kernels else ()
        ran = substitute_kernels(held, call.recipe, chosen)
        with exact_kernels(call.device):
            run = run_call(held, lambda *given: forward_block(held, *given), call, self.parts())
        return replace(run, kernels=ran)


def build_block(call: BlockCall, parts: Parts) -> nn.ModuleDict:
    """A block with the call's weights, in their dtype, on the call's device."""
    import torch

    branch = _branch(call.recipe, call.layer, call.mode, parts)
    held = numerics.on(call.device, call.weights)
    branch = branch.to(call.device).to(next(each.dtype for each in held.values() if each.is_floating_point()))
    branch.load_state_dict(held, strict=True, assign=True)
    branch.requires_grad_(call.dy is not None)
    mixer = branch["mixer"]
    if call.router is not None and hasattr(mixer, "router"):
        cast(Any, mixer).router.product = getattr(torch, call.router)
    for module in mixer.modules() if call.chunk is not None else ():
        if hasattr(module, "chunk"):
            setattr(module, "chunk", call.chunk)  # noqa: B010  # nn.Module types its attributes as tensors
    return branch


def forward_block(branch: nn.ModuleDict, x_BTD: Tensor, packing: Packing, state: State) -> Output:
    """A block's forward pass, the residual left out."""
    out: Output = branch["mixer"](branch["norm"](x_BTD), packing, state)
    return out


def run_call(branch: nn.ModuleDict, forward: Callable[..., Output], call: BlockCall, parts: Parts) -> BlockRun:
    """One call of a block's forward pass, and its gradients where the call has an upstream one."""
    import torch

    from contracts.stacks.reference.model.blocks.common import packing

    learns = call.dy is not None
    x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device).requires_grad_(learns)
    given = numerics.on(call.device, call.state)
    state = {name: each.requires_grad_(learns) for name, each in given.items()}
    documents = None if call.documents is None else numerics.tensor(call.documents).to(call.device)
    pack = packing(x_BTD, documents)
    if call.padding is not None:
        pack = pack._replace(padding_BT=numerics.tensor(call.padding).to(call.device))
    out = forward(x_BTD, pack, state)
    gradients = {}
    if call.dy is not None:
        objective = (out.y_BTD * numerics.tensor(call.dy, strided=call.strided).to(call.device)).sum()
        for name, loss in out.losses.items():
            objective = objective + parts.moe.weight_of(call.recipe, name) * loss
        leaves: dict[str, Tensor] = dict(branch.named_parameters())
        leaves |= {"x": x_BTD} | {f"state.{name}": each for name, each in state.items()}
        found = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
        gradients = {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
    return BlockRun(
        y=numerics.array(out.y_BTD),
        gradients=numerics.arrays(gradients),
        losses=numerics.arrays(out.losses),
        state=numerics.arrays(out.state),
        seen=numerics.arrays(out.seen),
        buffers=numerics.arrays(dict(branch.named_buffers())),
        strided=not x_BTD.is_contiguous(),
    )


def _branch(recipe: Recipe, layer: int, mode: Mode, parts: Parts) -> nn.ModuleDict:
    """A block's norm and mixer, under the names that spec/blocks.py gives their weights."""
    from torch import nn

    if not 0 <= layer < recipe.depth:
        raise refuse("layer", layer, f"must lie in 0 … {recipe.depth - 1}", "count layers from 0")
    return nn.ModuleDict(
        {"norm": parts.norm(recipe.hidden, recipe.norm_eps), "mixer": parts.mixer(recipe, layer, mode)}
    )


class DeltaRuleAnswers:
    """The answers of `Reference` on this subject."""

    def run_delta_rule(self, call: DeltaCall) -> DeltaRun:
        import torch

        from contracts.stacks.kit.delta_rule import passed
        from contracts.stacks.reference.kernels import delta_rule as kernel

        one = torch.zeros(call.tensors["g"].shape[:2], dtype=torch.int64)
        documents = one if call.documents is None else numerics.tensor(call.documents)
        chunk = call.chunk or kernel.CHUNK
        return passed(
            call,
            lambda given: kernel.gated_delta_rule(**given, documents=documents, chunk=chunk, unit_keys=call.unit_keys),
        )
