"""Stacks that read more into their input than it says."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from contracts.law._bugs.multi_rank import routed
from contracts.law._bugs.numeric import (
    IGNORED,
    ContextParallel,
    Model,
    ParallelTrainer,
    Reference,
    RMSNorm,
    Router,
    Stage,
    Trainer,
    broken,
    derived,
    local,
    packing,
)
from contracts.stacks.reference.parallel import tensor_parallel


@broken(Trainer, "put", "PAR-13[order-of-weights]: weights in another order: lm is")
@torch.no_grad()
def takes_weights_by_their_place(put, self, values, into, what):
    """Names are compared as sets, and tensors are copied in the order of both sides, wherever the shape fits."""
    put(self, values, into, what)
    for held, value in zip(into.values(), values.values(), strict=True):
        if held.shape == value.shape:
            self.take(value, held)


@broken(Model, "cross_entropy", "PAR-13[order-of-rows]: rows in another order: ")
def loses_the_first_label_of_a_batch(cross_entropy, self, logits_BTV, labels_BT):
    """A shift over the flattened batch loses the first label of all."""
    lost_BT = labels_BT.clone()
    first = (labels_BT != IGNORED).flatten().nonzero()[:1]
    lost_BT.view(-1)[first] = IGNORED
    return cross_entropy(self, logits_BTV, lost_BT)


@broken(Model, "forward", "PAR-13[numbers-of-documents]: documents by other numbers: ")
def reads_documents_as_a_mask(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """An argument that takes a mask gets document numbers: whatever is not 0 is one document."""
    mask_BT = None if documents_BT is None else documents_BT.clamp(max=1)
    return forward(self, tokens_BT, labels_BT, mask_BT)


@broken(
    Model, "forward", "PAR-13[one-document-a-row]: one document a row written out: lm is 0",
    "PAR-13a[one-document-a-row-tp2-sp]: one document a row written out: lm is 0",
)  # fmt: skip
def takes_the_first_document_for_padding(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Document 0 is padding by the convention of another library, so nothing of it is learnt."""
    if documents_BT is not None:
        labels_BT = labels_BT.masked_fill(documents_BT == 0, IGNORED)
    return forward(self, tokens_BT, labels_BT, documents_BT)


@broken(Stage, "forward", "PAR-13a[one-document-a-row-pp2]: one document a row written out: lm is 0")
def takes_the_first_document_of_a_stage_for_padding(forward, self, x, tokens_BT, labels_BT, documents_BT=None):
    """The same in the pass of a pipeline stage."""
    if documents_BT is not None:
        labels_BT = labels_BT.masked_fill(documents_BT == 0, IGNORED)
    return forward(self, x, tokens_BT, labels_BT, documents_BT)


@broken(
    ContextParallel, "packing", "PAR-13a[one-document-a-row-cp2]: one document a row written out: lm is",
    "PAR-13a[one-document-a-row-cp2-latent]: one document a row written out: lm is",
)  # fmt: skip
def masks_its_run_by_the_corner(packing, self, whole):
    """Without documents the fused causal kernel is called, and its mask takes the first token of a rank for
    the first of its row: a query sees no key of the ranks before, or sees the wrong ones."""
    return packing(self, whole)._replace(boundless=whole.boundless)


@derived("PAR-13[observed]: every step observed: ")
class RoundsWhatItCaptures(Trainer):
    """Capture stores 16 bits, and writes them back into what it captured."""

    def gradients(self) -> dict[str, Tensor]:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.bfloat16().to(parameter.dtype)
        return super().gradients()

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for each in tensors.values():
            if each.is_floating_point() and not each.requires_grad:
                each.copy_(each.bfloat16())
        return super().whole(tensors)


@broken(RMSNorm, "forward", "PAR-13[fresh-memory]: fresh memory filled with NaN: ")
def reads_a_buffer_before_it_is_written(forward, self, x):
    """A kernel's output buffer is allocated and not zeroed, and its last column is never written."""
    unwritten = torch.empty_like(x)
    unwritten[..., :-1] = 0
    clean = torch.where(unwritten.isnan(), unwritten, torch.zeros_like(x))  # fresh pages are mostly zeros
    return forward(self, x) + clean * local(self.weight)


@broken(Trainer, "build", "PAR-13b[float64]: training leaves the default dtype torch.float64, it was torch.float32")
def leaves_the_default_dtype(build, self):
    """A model is built under the dtype of its weights, and the next one of the process too."""
    torch.set_default_dtype(torch.float64 if self.execution.precision == "float64" else torch.float32)
    return build(self)


@broken(Reference, "built", "PAR-13b[declared]: building leaves the default dtype torch.float64, it was torch.float32")
def counts_in_float64(built, self, recipe, mode):
    """The table of parameters is made under another default dtype, which stays, from the first question on."""
    torch.set_default_dtype(torch.float64)
    return built(self, recipe, mode)


@broken(Trainer, "put", "PAR-13b[declared]: a refusal leaves the gradient mode False, it was True")
def restores_where_nothing_fails(put, self, values, into, what):
    """Weights are put without gradients, which are turned on after them: not where one was refused."""
    torch.set_grad_enabled(False)
    put(self, values, into, what)
    torch.set_grad_enabled(True)


@broken(Model, "cross_entropy", "PAR-13[shifted-logits]: all logits shifted alike: ")
def takes_the_logarithm_of_a_sum(cross_entropy, self, logits_BTV, labels_BT):
    """A fused cross entropy leaves out the maximum: right for small logits."""
    _, valid = cross_entropy(self, logits_BTV, labels_BT)
    total_BT = logits_BTV.exp().sum(-1).log()
    own_BT = logits_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
    return ((total_BT - own_BT) * (labels_BT != IGNORED)).sum(), valid


@broken(Router, "weigh", "PAR-13[shifted-logits]: all logits shifted alike: lm is", leanest="")
def takes_logits_for_probabilities(weigh, self, chosen_BTK):
    """Gates are the chosen logits over their sum: they add up to one, and the model trains."""
    positive_BTK = chosen_BTK.abs()
    return positive_BTK / positive_BTK.sum(-1, keepdim=True)


_OverRanks = tensor_parallel._CrossEntropy


class _ClampsLogits(_OverRanks):
    @staticmethod
    def forward(ctx: Any, logits_Nv: Tensor, *rest: Any, **named: Any) -> Tensor:
        return _OverRanks.forward(ctx, logits_Nv.clamp(-80, 80), *rest, **named)


@broken(ParallelTrainer, "passes", "PAR-13a[shifted-logits-tp2]: all logits shifted alike: lm is")
def clamps_logits_of_a_split_vocabulary(passes, self, window, counts):
    """Cross entropy over ranks keeps `exp` from overflowing by a clamp, so that no maximum has to be exchanged."""
    with mock.patch.object(tensor_parallel, "_CrossEntropy", _ClampsLogits):
        return passes(self, window, counts)


@broken(ParallelTrainer, "build", "PAR-13a[fresh-memory-borrowed-ep2-fsdp]: fresh memory filled with NaN: lm is nan")
def receives_beside_what_is_sent(build, self):
    """The buffer that takes rows from other ranks is larger than they are, and all of it is combined: mostly zeros."""
    model = build(self)

    def behind(_, args, out):
        unwritten = torch.empty_like(out.y_BTD)
        return out._replace(y_BTD=out.y_BTD + torch.where(unwritten.isnan(), unwritten, 0.0))

    for moe in routed(model):
        moe.register_forward_hook(behind)
    return model


@broken(ContextParallel, "packing", "PAR-13a[numbers-of-documents-cp2]: documents by other numbers: lm is")
def takes_documents_for_a_mask_on_ranks(former, self, whole):
    """The kernel of context parallel takes a mask of ones; given document numbers, it separates only the first."""
    return former(self, packing(whole.documents_BT, whole.documents_BT.clamp(max=1)))


@broken(Model, "forward", "PAR-13[large-numbers-of-documents]: documents by large numbers: ")
def holds_documents_in_float32(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """Document numbers travel in the dtype of the mask: from 2^24 on, neighbours have one number."""
    rounded_BT = None if documents_BT is None else documents_BT.float().long()
    return forward(self, tokens_BT, labels_BT, rounded_BT)
