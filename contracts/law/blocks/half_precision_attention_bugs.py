"""Attention that accumulates in its storage dtype."""

from functools import partial

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Attention, Causal, Model, RMSNorm, broken, derived, with_attributes
from contracts.stacks.reference.model.hybrid_model import ACTIVATIONS


class _WrittenOut(Attention):
    """Attention written out, with scores in the dtype of the activations, with and without documents."""

    def attend(self, q_BTHd: Tensor, k_BSHd: Tensor, v_BSHv: Tensor, visible_BTS: Tensor | None) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q_BTHd, k_BSHd, v_BSHv))
        if visible_BTS is None:
            visible_BTS = torch.ones(1, q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
        return (self.probabilities(self.scores(q, k), visible_BTS).to(v.dtype) @ v).transpose(1, 2)

    def scores(self, q_BHTd: Tensor, k_BHSd: Tensor) -> Tensor:
        scores_BHTS: Tensor = (q_BHTd @ k_BHSd.mT) * self.scale
        return scores_BHTS


with_attributes(
    "ScoresAreHalf",
    "Scores are rounded before the softmax, which erases the differences between keys.",
    "BLK-03k[close-scores-packed]: close scores in bfloat16: y of the last three tokens differs",
    "BLK-03k[close-scores]: close scores in bfloat16: y of the last three tokens differs",
    owner=_WrittenOut,
)


@derived(
    "BLK-03k[equal-keys-packed]: equal keys in bfloat16: y of the last three tokens differs",
    "BLK-03k[equal-keys]: equal keys in bfloat16: y of the last three tokens differs",
)
class SoftmaxAddsUpInHalf(_WrittenOut):
    """The softmax denominator is summed in bfloat16, which cannot count past 256."""

    def scores(self, q_BHTd: Tensor, k_BHSd: Tensor) -> Tensor:
        return super().scores(q_BHTd.float(), k_BHSd.float())

    def probabilities(self, scores_BHTS: Tensor, visible_BTS: Tensor) -> Tensor:
        masked = scores_BHTS.masked_fill(~visible_BTS[:, None], -torch.inf)
        weights = (masked - masked.amax(-1, keepdim=True)).exp().bfloat16()
        total = torch.zeros_like(weights[..., 0])
        for key in range(weights.shape[-1]):
            total += weights[..., key]
        return weights / total[..., None]


@broken(
    Attention,
    "angles",
    "BLK-03k[far]: far in bfloat16: y of the last three tokens differs",
    "BLK-03k[far-without-qk-norm]: far in bfloat16: y of the last three tokens differs",
)
def angles_are_half(angles, self, positions_BT, size):
    """Rope angles are computed in the dtype of the activations."""
    return angles(self, positions_BT, size).bfloat16()


@broken(RMSNorm, "forward", "BLK-03k[loud-float16]: loud in float16: ")
def norms_in_half(forward, self, x):
    """The norm squares in the dtype of the activations: 256² is infinite in float16, so the block outputs zero."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight.to(x.dtype)


def _with_angles(model, of):
    """A model whose attention takes other angles, made of the dtype of its activations, positions and size."""
    for each in model.modules():
        if isinstance(each, Causal):
            each.angles = partial(of, each, ACTIVATIONS[model.recipe.dtype])


@broken(
    Model,
    "__init__",
    "BLK-03l[bf16]: the first 64 tokens are off by ",
    "BLK-03l[fp16]: the first 64 tokens are off by ",
    "BLK-03l[bf16-without-qk-norm]: the first 64 tokens are off by ",
)
def casts_frequencies_with_the_model(init, self, recipe, mode, parts):
    """Frequencies are a buffer of the model, which is cast to half precision as a whole."""
    init(self, recipe, mode, parts)

    def of(attention, dtype, positions_BT, size):
        pairs = torch.arange(size // 2, dtype=torch.float64)
        frequencies = (attention.theta ** (-2.0 * pairs / size)).to(torch.bfloat16 if dtype.itemsize == 2 else dtype)
        return positions_BT.double()[..., None] * frequencies.double()

    _with_angles(self, of)


@broken(
    Model,
    "__init__",
    "BLK-03l[bf16]: the first 64 tokens are off by ",
    "BLK-03l[bf16-latent]: the first 64 tokens are off by ",
)
def takes_positions_in_the_dtype_of_the_model(init, self, recipe, mode, parts):
    """Positions take part in the dtype of the activations: from 256 on bfloat16 has every second one."""
    init(self, recipe, mode, parts)
    _with_angles(self, lambda attention, dtype, positions, size: Causal.angles(attention, positions.to(dtype), size))
