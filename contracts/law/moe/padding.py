"""Positions without a token, which a router is given: what they count in, and what they take.

B sequences · T positions · K experts a token
"""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import PLAIN_SIGMOID, SIGMOID, SOFTMAX
from contracts.law._support.late import torch
from contracts.spec import FLOAT64, Array, BlockCall, Blocks, Moe, chosen

LENGTH = 7
ENDS: dict[str, tuple[str, Moe, tuple[int, ...]]] = {  # loss, router, tokens of each row of 7 positions
    "softmax-balance": ("aux", replace(SOFTMAX, aux_loss=0.3, z_loss=0.0), (7, 4, 2)),
    "softmax-z": ("z", replace(SOFTMAX, aux_loss=0.0, z_loss=0.2), (7, 4, 2)),
    "sigmoid-balance": ("aux", replace(SIGMOID, selection_bias=False, aux_loss=0.3, z_loss=0.0), (3, 6)),
    "sigmoid-z": ("z", replace(SIGMOID, selection_bias=False, aux_loss=0.0, z_loss=0.2), (3, 6)),
    "selection-bias": ("aux", replace(SIGMOID, aux_loss=0.3, z_loss=0.0), (7, 4, 2)),
    "row-of-padding-balance": ("aux", replace(SOFTMAX, aux_loss=0.3, z_loss=0.0), (4, 0, 7)),
    "no-padding": ("aux", replace(SOFTMAX, aux_loss=0.3, z_loss=0.0), (7, 7)),
}
SOURCE = "Megatron-Core: MoELayer.forward, padding_mask; transformers: load_balancing_loss_func, attention_mask"


@contract("MOE-09a", asks="run_block", cases=ENDS, source=SOURCE, conventions=("balance-over",))
def padding_counts_in_no_loss_of_a_router(stack: Blocks, loss: str, moe: Moe, lengths: tuple[int, ...]) -> None:
    """A router that is given the padding mask leaves padding out of the balance loss, of the z loss, of the gradients
    that they give, and of the counts by which a selection bias moves.

    Padding is the same token over and over: it crowds the same experts, and a router that counts it learns to send
    text elsewhere. The expected losses equal those of the rows without padding.
    """
    name = "mixer.router.weight"
    call = expert_calls.drawn_call(expert_calls.with_moe(moe), len(lengths), LENGTH)
    x_BTD = numerics.tensor(call.x)
    pooled = loss == "aux" and chosen(stack, "balance-over") != "sequence"
    rows = [x_TD[:length] for x_TD, length in zip(x_BTD, lengths, strict=True) if length]  # without a token it is none
    parts = [torch.cat(rows)] if pooled else rows
    runs = [stack.run_block(_silent(replace(call, x=numerics.array(part_TD[None])))) for part_TD in parts]
    sizes = [1 if loss == "aux" else len(part_TD) for part_TD in parts]
    got = stack.run_block(_silent(replace(call, padding=_padding(lengths))))
    where = f"with {lengths} tokens in rows of {LENGTH}"
    assert loss in got.losses, f"the losses are {', '.join(sorted(got.losses)) or 'none'}; {loss} is missing"
    want = torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros(moe.experts, x_BTD.shape[-1], dtype=torch.float64)
    for run, size in zip(runs, sizes, strict=True):
        want = want + numerics.tensor(run.losses[loss]) * size / sum(sizes)
        gradient = gradient + numerics.tensor(run.gradients[name]) * size / sum(sizes)
    words = numerics.difference(f"{where} the loss {loss}", got.losses[loss], want.reshape(()), FLOAT64)
    words = words or numerics.difference(f"{where} the gradient of {name}", got.gradients[name], gradient, FLOAT64)
    assert not words, words
    if moe.selection_bias:
        counted = torch.stack([numerics.tensor(run.seen["counts"]) for run in runs]).sum(0).tolist()
        found = numerics.tensor(got.seen["counts"]).tolist()
        assert found == counted, f"{where} the counts are {found}, expected {counted}"


HALF = replace(PLAIN_SIGMOID, selection_bias=False, capacity_factor=0.5)
SLOTS: dict[str, tuple[Moe, tuple[int, ...]]] = {
    "half-a-share": (HALF, (3, 7, 5)),
    "softmax": (replace(SOFTMAX, capacity_factor=0.5, aux_loss=0.0, z_loss=0.0), (2, 7)),
    "a-row-of-padding": (HALF, (0, 7, 7)),
    "by-gate": (replace(HALF, drop_policy="probs"), (3, 7, 5)),
}


@contract("MOE-09b", asks="run_block", cases=SLOTS, source="flaxformer: ignore_padding_tokens; F21",
          conventions=("padding-slots",))  # fmt: skip
def padding_takes_no_slot(stack: Blocks, moe: Moe, lengths: tuple[int, ...]) -> None:
    """If experts drop tokens, padding takes no slot: each expert keeps its first tokens in token order, or those with
    the greatest gates, as if no padding were between them.

    The padding of a row comes before the tokens of the next one. If it takes slots, what a row is given depends on how
    much the rows before it are padded. A stack may declare that it does.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), len(lengths), LENGTH)
    run = stack.run_block(replace(call, dy=None, padding=_padding(lengths)))
    experts, gates, dropped = (
        numerics.tensor(run.seen[each]).flatten(0, 1).tolist() for each in ("experts", "gates", "dropped")
    )
    slots = math.ceil((moe.capacity_factor or 1.0) * len(lengths) * LENGTH * moe.top_k / moe.experts)
    taken, lost = [0] * moe.experts, 0
    asked = [
        (0.0 if moe.drop_policy == "position" else -gate, place, expert, gone)
        for place, token in enumerate(zip(experts, gates, dropped, strict=True))
        for expert, gate, gone in zip(*token, strict=True)
    ]
    for _, place, expert, gone in sorted(asked):
        row, at = divmod(place, LENGTH)
        token = at < lengths[row]
        if not token and chosen(stack, "padding-slots") == "none":
            continue
        taken[expert] += 1
        want = taken[expert] > slots
        lost += want
        words = f"token {at} of row {row} {'loses' if gone else 'keeps'} expert {expert}"
        assert gone == want or not token, f"{words}, the {taken[expert]}th of {slots} slots"
    assert lost, "no expert is full, and the case shows nothing"


PACKED: dict[str, tuple[Moe, tuple[int, ...]]] = {
    "balance-loss": (replace(SOFTMAX, aux_loss=0.3, z_loss=0.2), (7, 4, 2)),
    "selection-bias": (replace(SIGMOID, aux_loss=0.3, z_loss=0.0), (3, 6)),
}


@contract("MOE-09c", asks="run_block", cases=PACKED, source="GATE-22; F06")
def documents_change_nothing_about_padding(stack: Blocks, moe: Moe, lengths: tuple[int, ...]) -> None:
    """If a router is given document numbers as well as the padding mask, output, losses, gradients and counts do not
    change: the router takes a row as one sequence, however many documents it holds.

    Both say which positions belong together, and where one mask is made of the other, or stands in for it, padding
    becomes the last document.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe), len(lengths), LENGTH)
    call = replace(call, padding=_padding(lengths))
    documents_BT = (torch.arange(LENGTH) >= 2).long().expand(len(lengths), -1)
    plain, packed = stack.run_block(call), stack.run_block(replace(call, documents=numerics.array(documents_BT)))
    words = numerics.difference("y", packed.y, plain.y, FLOAT64)
    words = words or numerics.differences("the loss", packed.losses, plain.losses, FLOAT64)
    words = words or numerics.gradient_differences("the gradient of", packed.gradients, plain.gradients, FLOAT64)
    words = words or numerics.difference("the counts", packed.seen["counts"], plain.seen["counts"], FLOAT64)
    assert not words, f"given documents beside padding, {words}"


def _silent(call: BlockCall) -> BlockCall:
    """The call with an output gradient of zero."""
    return replace(call, dy=numerics.array(torch.zeros_like(numerics.tensor(call.x))))


def _padding(lengths: tuple[int, ...]) -> Array:
    """(B, T), true after the tokens of each row."""
    return numerics.array(torch.arange(LENGTH) >= torch.tensor(lengths)[:, None])
