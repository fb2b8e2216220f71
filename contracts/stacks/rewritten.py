"""Correct stacks drawn by seed: the reference after the rewrites that a team makes without changing what it computes.

Fused weights, another kernel, another chunk, products as other sums, a wider dtype inside; sums in another order
(`contracts.stacks.reordered`), and a part of the questions and layouts offered. A contract that is red on one of them
is wrong: `python -m benchmarks.false_alarms` looks for such contracts. Recomputation that was not asked for is no such
rewrite: it changes what a step holds and sends.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.stacks import reordered
from contracts.stacks.reference.model.blocks import (
    M2RNN,
    Attention,
    Experts,
    HyperConnections,
    Mamba2,
    Mlp,
    MoE,
    Router,
)
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, RMSNorm, State, local
from contracts.stacks.reference.model.hybrid_model import Model, Vocabulary
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.stack import Reference


def _fused(matrices: tuple[Linear, ...], x: Tensor) -> tuple[Tensor, ...]:
    """One product for several matrices; each by itself where it is in FP8."""
    if any(each.fp8 is not None for each in matrices):
        return tuple(each(x) for each in matrices)
    weights = [local(each.weight, each.summed, each.piece).to(x.dtype) for each in matrices]
    return torch.split(F.linear(x, torch.cat(weights)), [len(each) for each in weights], dim=-1)


def _one_product(self: Attention, x_BTD: Tensor, packing: Packing, state: State) -> Output:
    q_BTHd, k_BTGd, v_BTGd = (self.split(each) for each in _fused((self.wq, self.wk, self.wv), x_BTD))
    q_BTHd, k_BTGd = self.place(q_BTHd, k_BTGd, packing)
    k_BSHd, v_BSHd = (self.repeat(self.row.every(each), q_BTHd.shape[2]) for each in (k_BTGd, v_BTGd))
    visible_BTS = None if packing.boundless else self.visible(packing)
    return Output(y_BTD=self.wo(self.attend(q_BTHd, k_BSHd, v_BSHd, visible_BTS).flatten(2)))


def _expanded(self: Attention, kv_BTGd: Tensor, heads: int) -> Tensor:
    batch, length, groups, size = kv_BTGd.shape
    return kv_BTGd[:, :, :, None].expand(-1, -1, -1, heads // groups, -1).reshape(batch, length, heads, size)


def _complex_rope(self: Attention, x_BTHd: Tensor, packing: Packing) -> Tensor:
    wide = torch.promote_types(x_BTHd.dtype, torch.float32)
    first, second = x_BTHd.to(wide).chunk(2, dim=-1)
    angles = self.angles(packing.positions_BT, x_BTHd.shape[-1])[:, :, None].to(torch.float64)
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex(first, second).dtype)
    turned = torch.complex(first, second) * turn
    return torch.cat((turned.real, turned.imag), dim=-1).to(x_BTHd.dtype)


def _written_out(self: Attention, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible: Tensor | None) -> Tensor:
    """Scores head by head, in float64."""
    if visible is None:
        visible = q_BTHd.new_ones(len(q_BTHd), q_BTHd.shape[1], k_BSHd.shape[1], dtype=torch.bool).tril()
    scores = torch.einsum("bthd,bshd->bhts", q_BTHd.double(), k_BSHd.double()) * self.scale
    weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshv->bthv", weights, v_BSHv.double()).to(q_BTHd.dtype)


def _one_gate_product(self: Mlp, x_BTD: Tensor) -> Tensor:
    if self.gated:
        gate, up = _fused((self.w1, self.w3), x_BTD)
        inner = self.gate(gate, up)
    else:
        inner = self.activate(self.w1(x_BTD))
    y_BTD: Tensor = self.w2(inner)
    return y_BTD


def _square_where_positive(self: Mlp, x_BTF: Tensor) -> Tensor:
    return torch.where(x_BTF > 0, x_BTF * x_BTF, 0)


def _one_after_the_other(self: Experts, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """Each expert on its run of rows, the last first."""
    if self.fp8 is not None:
        return Experts.matmul(self, x_SI, weight_EOI, ends_E)
    ends = [0, *ends_E.tolist()]
    runs = [
        F.linear(x_SI[ends[expert] : ends[expert + 1]], weight_EOI[expert].to(x_SI.dtype))
        for expert in reversed(range(len(weight_EOI)))
    ]
    rest = x_SI.new_zeros(len(x_SI) - ends[-1], weight_EOI.shape[1])
    return torch.cat([*reversed(runs), rest])


def _summed_by_index(self: MoE, given_SD: Tensor, order_S: Tensor, gates_NK: Tensor, dropped_NK: Tensor) -> Tensor:
    """Rows are weighed where they are and added to their tokens."""
    given_SD = given_SD.masked_fill(dropped_NK.flatten()[order_S][:, None], 0)  # what has no expert is undefined
    weighed_SD = given_SD.to(gates_NK.dtype) * gates_NK.flatten()[order_S][:, None]
    zeros_ND = weighed_SD.new_zeros(len(gates_NK), given_SD.shape[-1])
    return zeros_ND.index_add(0, order_S // gates_NK.shape[1], weighed_SD)


def _sorted_choice(self: Router, scores_BTE: Tensor) -> Tensor:
    scores_BTE = scores_BTE.detach() if self.bias is None else scores_BTE.detach() + self.bias
    return scores_BTE.sort(dim=-1, descending=True, stable=True).indices[..., : self.moe.top_k]


def _divided_root(self: RMSNorm, x: Tensor) -> Tensor:
    """In float64, divided by the root instead of multiplied by its inverse."""
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt() * local(self.weight, self.summed)
    return normed.to(x.dtype)


def _chunks_of(tokens: int) -> Any:
    def scan(self: Mamba2, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> Any:
        self.chunk = tokens
        return Mamba2.scan(self, x, dt, b, c, packing, state)

    return scan


def _leaning_step(self: M2RNN, h_Bhnp: Tensor, k_Bhn: Tensor, v_Bhp: Tensor, f_Bh11: Tensor) -> Tensor:
    """p + f · (h - p), with the outer product as a product of matrices."""
    outer = k_Bhn[..., :, None] @ v_Bhp[..., None, :]
    proposed = torch.tanh((local(self.W).mT @ h_Bhnp.mT).mT + outer)
    return proposed + f_Bh11 * (h_Bhnp - proposed)


def _read_by_matrix(self: HyperConnections, streams_BTND: Tensor, pre_BTN: Tensor) -> Tensor:
    return (pre_BTN.to(streams_BTND.dtype)[..., None, :] @ streams_BTND).squeeze(-2)


def _loss_written_out(self: Model, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    if type(self.vocabulary) is not Vocabulary:
        return Model.cross_entropy(self, logits_BTV, labels_BT)
    valid_BT = labels_BT >= 0
    asked_BT = logits_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
    return ((logits_BTV.logsumexp(-1) - asked_BT) * valid_BT).sum(), valid_BT.sum()


REWRITES: Mapping[str, tuple[str, str, Any]] = {
    "one product for queries, keys and values": ("attention", "forward", _one_product),
    "keys and values expanded": ("attention", "repeat", _expanded),
    "rope by complex numbers": ("attention", "rotate", _complex_rope),
    "attention written out in float64": ("attention", "attend", _written_out),
    "one product for gate and up": ("mlp", "apply_to", _one_gate_product),
    "squared relu by a condition": ("mlp", "activate", _square_where_positive),
    "experts one after the other": ("experts", "matmul", _one_after_the_other),
    "experts added by index": ("moe", "combine", _summed_by_index),
    "experts chosen by a sort": ("router", "choose", _sorted_choice),
    "norm in float64": ("norm", "forward", _divided_root),
    "scan in chunks of 1": ("mamba2", "scan", _chunks_of(1)),
    "scan in chunks of 7": ("mamba2", "scan", _chunks_of(7)),
    "scan in chunks of 256": ("mamba2", "scan", _chunks_of(256)),
    "recurrence by matrices": ("recurrent", "step", _leaning_step),
    "streams read by a matrix": ("streams", "read", _read_by_matrix),
    "loss written out": ("model", "cross_entropy", _loss_written_out),
}
"""Rewrite → the part of the reference, the method of it, and what takes its place."""

ORDERS = ("Reversed", "Blocked", "Pairwise", "Unfused")


class Rewritten(Reference):
    """The reference after some rewrites, offering a part of what it can."""

    rewrites: tuple[str, ...] = ()

    def parts(self) -> Parts:
        exchanged: dict[str, Any] = {}
        found = super().parts()
        for role, method, body in (REWRITES[name] for name in self.rewrites):
            known = exchanged.get(role, getattr(found, role))
            exchanged[role] = type(known.__name__, (known,), {method: body, "__module__": __name__})
        return replace(found, **exchanged)


def drawn(seed: int) -> Reference:
    """The stack of a seed: one to six rewrites, an order of sums for half of them, nine in ten of the questions."""
    draw = random.Random(seed)
    chosen = tuple(draw.sample(sorted(REWRITES), draw.randint(1, 6)))
    order = draw.choice([*ORDERS, *[""] * len(ORDERS)])
    bases = (Rewritten,) if not order else (getattr(reordered, order), Rewritten)
    offers = frozenset(each for each in sorted(Reference.offers) if draw.random() < 0.9)
    offers -= {"seams"} if "experts one after the other" in chosen else set()  # the table states a grouped product
    layouts = frozenset(draw.choice((("own-axis",), ("borrowed",), ("own-axis", "borrowed"))))
    name = " · ".join(filter(None, [f"drawn {seed}", *chosen, order.lower()]))
    body = {"rewrites": chosen, "name": name, "offers": offers, "layouts": layouts, "__module__": __name__}
    made: Reference = type("Drawn", bases, body)()
    return made
