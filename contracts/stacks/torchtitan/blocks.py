"""One block of torchtitan: the norm and the attention, the experts or the MLP of one of its layers, in one process.

The modules are torchtitan's own and get the tensors of the question. Under bfloat16 activations, parameters are float32
and are rounded before use, as in the mixed precision of its `fully_shard`.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contracts.instruments import graphs, numerics
from contracts.spec import (
    AllowedBreak,
    Backend,
    BlockCall,
    BlockRun,
    CompiledRuns,
    Execution,
    Lack,
    Mode,
    Moe,
    Recipe,
    Shape,
    decline,
)
from contracts.spec import pattern as patterns
from contracts.stacks.kit.links import to_canonical, to_theirs
from contracts.stacks.kit.runs import gradients_of
from contracts.stacks.kit.versions import Misfit
from contracts.stacks.torchtitan import layer_symbols, shims, symbols, weight_mapping
from contracts.stacks.torchtitan.abilities import OF_GPT_OSS
from contracts.stacks.torchtitan.model import config_of
from contracts.stacks.torchtitan.template import built

FEW = Moe(experts=2, top_k=2, expert_hidden=8, shared_hidden=0, aux_loss=0.0)


def alone(recipe: Recipe, layer: int) -> tuple[str, Recipe]:
    """The letter of a layer, and the recipe of the torchtitan layer that contains that block.

    Raises:
        NotOffered: for a block that torchtitan 0.3.0 does not have.
    """
    parsed = patterns.parse(recipe.pattern, recipe.depth)
    letter = parsed.letters[layer]
    ranks = [number for number, each in enumerate(parsed.letters) if each == "A"]
    moe = recipe.moe
    routed = letter == "E" and moe is not None
    reasons: dict[Lack, dict[str, object]] = {
        "stack": {
            f"it has no {letter} block": letter not in "AE",
            "it has no sparse attention": letter == "A" and recipe.dsa and ranks.index(layer) in recipe.dsa.a_ranks,
            "it has no Mamba": letter == "A" and recipe.parallel_ssm,
            OF_GPT_OSS: routed and "experts" in recipe.biases,
            "it drops no token": routed and moe and moe.capacity_factor,
            "its MLPs and its experts are gated only by silu": letter == "E" and recipe.activation != "swiglu",
            "it has no auxiliary loss, only a selection bias": routed and moe and (moe.aux_loss or moe.z_loss),
        },
        "device": {"FP8 needs a GPU": recipe.fp8 is not None},
    }
    decline("torchtitan 0.3.0", reasons)
    one = replace(recipe, pattern="AE", depth=2, dsa=None, mtp=None, mhc=None)
    return letter, replace(one, moe=FEW, activation="swiglu") if letter == "A" else one


def block_weights(recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
    """Names and shapes of a block's parameters and buffers; torchtitan stores them in float32."""
    letter, one = alone(recipe, layer)
    held = _Block(letter, one, "meta").named()
    ours = to_canonical(held, weight_mapping.block(letter, one))
    return {name: Shape(dtype="float32", shape=tuple(each.shape)) for name, each in sorted(ours.items())}


def run_block(call: BlockCall) -> BlockRun:
    """A block forward, and backward where the call has an upstream gradient."""
    letter, one = alone(call.recipe, call.layer)
    x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device)
    declined(call, letter, x_BTD)
    one = replace(one, seq_length=max(one.seq_length, x_BTD.shape[1]))
    with shims.quiet(), shims.computing_on(call.device), shims.block_in(x_BTD.dtype):
        return _Block(letter, one, call.device).run(call, x_BTD.requires_grad_(call.dy is not None))


def run_compiled(calls: tuple[BlockCall, ...], backend: Backend) -> CompiledRuns:
    """Calls of one block, compiled by its own `apply_compile`: a full graph, in which a break is an error."""
    from torchtitan.config import CompileConfig

    from contracts.stacks.torchtitan.recorded_step import by_itself

    letter, one = alone(calls[0].recipe, calls[0].layer)
    one = replace(one, seq_length=max(one.seq_length, *(call.x.shape[1] for call in calls)))
    runs, seen = [], []
    single = calls[0].x.dtype == "float32"
    with (
        graphs.counting(backend) as counter, shims.quiet(), shims.computing_on(calls[0].device),
        shims.compiled_in_float32() if single else contextlib.nullcontext(),
    ):  # fmt: skip
        block, model = _Block(letter, one, calls[0].device), nn.Module()
        model.add_module("layers", nn.ModuleDict({"0": block}))
        symbols.compiled(model, CompileConfig(enable=True, components=["model"], backend=counter), by_itself())
        for call in calls:
            x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device)
            declined(call, letter, x_BTD)
            with shims.block_in(x_BTD.dtype):
                runs.append(block.run(call, x_BTD.requires_grad_(call.dy is not None)))
            seen.append(counter.seen())
    return CompiledRuns(runs=tuple(runs), graphs=tuple(seen))


def allowed_breaks(recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
    """None: each of its blocks is a full graph."""
    return ()


def declined(call: BlockCall, letter: str, x_BTD: Tensor) -> None:
    """Decline a call that torchtitan 0.3.0 cannot answer, or not on a CPU.

    Raises:
        NotOffered: with the reason.
    """
    packed = letter == "A" and call.documents is not None
    reasons: dict[Lack, dict[str, object]] = {
        "stack": {
            "its mixed precision is bfloat16, not float16": x_BTD.dtype is torch.float16,
            "its layers are given no padding": call.padding is not None,
            "its gate is put in float32 here": call.router is not None,
        },
        "device": {
            "it is asked with its own operations": bool(call.kernels),
            "packed documents need its flex_attention, which a CPU has not compiled": packed,
        },
    }
    decline("torchtitan 0.3.0", reasons)


class _Block(nn.Module):
    """Half of a layer: a norm and the module after it."""

    def __init__(self, letter: str, recipe: Recipe, device: str) -> None:
        super().__init__()
        self.letter, self.recipe = letter, recipe
        with torch.device(device):
            model = built(config_of(recipe))
        self.before, self.branch = ("attention_norm", "attention") if letter == "A" else ("ffn_norm", _branch(recipe))
        for name in (self.before, self.branch):
            self.add_module(name, model.layers["0"].get_submodule(name))
        self.rope = [getattr(model, name) for name in ("freqs_cis", "rope_cache") if hasattr(model, name)]  # no buffer
        self.routed: list[Any] = []
        if self.branch == "moe":
            router: Any = self.get_submodule("moe.router")
            router.register_forward_hook(lambda *told: self.routed.append(told[2]))

    def named(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def forward(self, x_BTD: Tensor) -> Tensor:
        normed_BTD = getattr(self, self.before)(x_BTD)
        return symbols.of_rows(
            getattr(self, self.branch), normed_BTD, attends=self.letter == "A", rope=next(iter(self.rope), None)
        )

    def run(self, call: BlockCall, x_BTD: Tensor) -> BlockRun:
        links = list(weight_mapping.block(self.letter, self.recipe))
        given = to_theirs(numerics.on(call.device, call.weights), links)
        self._fits(given)
        trained = {name: given[name].requires_grad_() for name, _ in self.named_parameters()}
        counts_E = x_BTD.new_zeros(self.recipe.moe.experts if self.recipe.moe else 0, dtype=torch.float32)
        tensors = {name: each.to(x_BTD.dtype) for name, each in trained.items()}
        tensors |= {name: each for name, each in given.items() if name not in trained}
        self.routed.clear()
        if self.branch == "moe":
            tensors[layer_symbols.named("moe.tokens_per_expert_E")] = counts_E
            if call.device == "cpu":
                shims.wide_gate(self.get_submodule("moe.router"), x_BTD.dtype)
        y_BTD = torch.func.functional_call(self, tensors, (x_BTD,))
        gradients = {}
        if call.dy is not None:
            dy_BTD = numerics.tensor(call.dy, strided=call.strided).to(call.device)
            found = gradients_of(y_BTD, dy_BTD, {**trained, "x": x_BTD})
            gradients = {"x": found.pop("x"), **to_canonical(found, links)}
        return BlockRun(
            y=numerics.array(y_BTD.detach()),
            gradients=numerics.arrays(gradients),
            seen=numerics.arrays(_seen(self.routed, counts_E, x_BTD.shape[:2])),
            strided=not x_BTD.is_contiguous(),
        )

    def _fits(self, given: Mapping[str, Tensor]) -> None:
        """Check that exactly the block's tensors are given; torchtitan's tables and counter are not weights."""
        own = {name for name in self.named() if not re.search(r"rope\.cache|tokens_per_expert", name)}
        if own != given.keys():
            raise Misfit(f"weights and block differ in {sorted(own ^ given.keys())}")


def _branch(recipe: Recipe) -> str:
    return "feed_forward" if recipe.moe is None else "moe"


def _seen(routed: list[Any], counts_E: Tensor, rows: tuple[int, ...]) -> dict[str, Tensor]:
    """What the router returned, and what the layer added to its own counter."""
    if not routed:
        return {}
    # in July 2026 its layer routes one token more in a row without tokens, and cuts it off again
    gates_BTK, experts_BTK = (each.view(rows[0], -1, each.shape[-1])[:, : rows[1]] for each in routed[0][:2])
    dropped_BTK = torch.zeros_like(experts_BTK, dtype=torch.bool)  # its dispatcher has no capacity
    return {"experts": experts_BTK, "gates": gates_BTK.detach(), "counts": counts_E.long(), "dropped": dropped_BTK}
