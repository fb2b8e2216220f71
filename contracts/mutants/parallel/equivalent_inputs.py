"""Stacks that read more into their input than it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.multi_rank import Spread, routed
from contracts.mutants._support.patched_functions import swapped
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.training import Built
from contracts.stacks.reference.data import IGNORED
from contracts.stacks.reference.model.blocks.common import Output, Packing, RMSNorm, local, packing
from contracts.stacks.reference.model.blocks.moe import Router
from contracts.stacks.reference.model.hybrid_model import Model, ModelOutput
from contracts.stacks.reference.parallel import tensor_parallel
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training.trainer import Batch, Trainer


class _ByPlace(Trainer):
    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        super().put(values, into, what)
        for held, value in zip(into.values(), values.values(), strict=True):
            if held.shape == value.shape:
                self.take(value, held)


@mutant(of="PAR-13", case="order-of-weights", says="weights in another order: lm is")
class TakesWeightsByTheirPlace(Trained):
    """Names are compared as sets, and tensors are copied in the order of both sides, wherever the shape fits."""

    trains = _ByPlace


class _FirstLabelIsLost(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        lost_BT = labels_BT.clone()
        first = (labels_BT != IGNORED).flatten().nonzero()[:1]
        lost_BT.view(-1)[first] = IGNORED
        return super().cross_entropy(logits_BTV, lost_BT)


@mutant(of="PAR-13", case="order-of-rows", says="rows in another order: ")
class LosesTheFirstLabelOfABatch(Exchanged):
    """A shift over the flattened batch loses the first label of all."""

    exchange = {"model": _FirstLabelIsLost}


class _Masks(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        mask_BT = None if documents_BT is None else documents_BT.clamp(max=1)
        return super().forward(tokens_BT, labels_BT, mask_BT)


@mutant(of="PAR-13", case="numbers-of-documents", says="documents by other numbers: ")
class ReadsDocumentsAsAMask(Exchanged):
    """An argument that takes a mask gets document numbers: whatever is not 0 is one document."""

    exchange = {"model": _Masks}


class _ZeroIsPadding(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        if documents_BT is not None:
            labels_BT = labels_BT.masked_fill(documents_BT == 0, IGNORED)
        return super().forward(tokens_BT, labels_BT, documents_BT)


@mutant(of="PAR-13", case="one-document-a-row", says="one document a row written out: lm is 0")
class TakesTheFirstDocumentForPadding(Exchanged):
    """Document 0 is padding by the convention of another library, so nothing of it is learnt."""

    exchange = {"model": _ZeroIsPadding}


class _CapturesInPlace(Trainer):
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


@mutant(of="PAR-13", case="observed", says="every step observed: ")
class RoundsWhatItCaptures(Trained):
    """Capture stores 16 bits, and writes them back into what it captured."""

    trains = _CapturesInPlace


class _KeepsItsBuffer(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        unwritten = torch.empty_like(x)
        unwritten[..., :-1] = 0
        clean = torch.where(unwritten.isnan(), unwritten, torch.zeros_like(x))  # fresh pages are mostly zeros
        return super().forward(x) + clean * local(self.weight)


@mutant(of="PAR-13", case="fresh-memory", says="fresh memory filled with NaN: ")
class ReadsABufferBeforeItIsWritten(Exchanged):
    """A kernel's output buffer is allocated and not zeroed, and its last column is never written."""

    exchange = {"norm": _KeepsItsBuffer}


class _LeavesItsDtype(Trainer):
    def build(self) -> Model:
        torch.set_default_dtype(torch.float64 if self.execution.precision == "float64" else torch.float32)
        return super().build()


@mutant(of="PAR-13b", case="float64", says="training leaves the default dtype torch.float64, it was torch.float32")
class LeavesTheDefaultDtype(Trained):
    """A model is built under the dtype of its weights, and the next one of the process too."""

    trains = _LeavesItsDtype


@mutant(of="PAR-13b", case="declared", says="building leaves the default dtype torch.float64, it was torch.float32")
class CountsInFloat64(Reference):
    """The table of parameters is made under another default dtype, which stays, from the first question on."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        torch.set_default_dtype(torch.float64)
        return super().built(recipe, mode)


class _RestoresWhereNothingFails(Trainer):
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        torch.set_grad_enabled(False)
        super().put(values, into, what)
        torch.set_grad_enabled(True)


@mutant(of="PAR-13b", case="declared", says="a refusal leaves the gradient mode False, it was True")
class RestoresWhereNothingFails(Trained):
    """Weights are put without gradients, which are turned on behind them: not where one was refused."""

    trains = _RestoresWhereNothingFails


class _OverflowsTheLoss(Model):
    def cross_entropy(self, logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        _, valid = super().cross_entropy(logits_BTV, labels_BT)
        total_BT = logits_BTV.exp().sum(-1).log()
        own_BT = logits_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
        return ((total_BT - own_BT) * (labels_BT != IGNORED)).sum(), valid


@mutant(of="PAR-13", case="shifted-logits", says="all logits shifted alike: ")
class TakesTheLogarithmOfASum(Exchanged):
    """A fused cross entropy leaves out the maximum: right for small logits."""

    exchange = {"model": _OverflowsTheLoss}


class _LogitsForProbabilities(Router):
    def weigh(self, chosen_BTK: Tensor) -> Tensor:
        positive_BTK = chosen_BTK.abs()
        return positive_BTK / positive_BTK.sum(-1, keepdim=True)


@mutant(of="PAR-13", case="shifted-logits", says="all logits shifted alike: lm is", leanest="")
class TakesLogitsForProbabilities(Exchanged):
    """Gates are the chosen logits over their sum: they add up to one, and the model trains."""

    exchange = {"router": _LogitsForProbabilities}


_OverRanks = tensor_parallel._CrossEntropy


class _ClampsLogits(_OverRanks):
    @staticmethod
    def forward(ctx: Any, logits_Nv: Tensor, *rest: Any, **named: Any) -> Tensor:
        return _OverRanks.forward(ctx, logits_Nv.clamp(-80, 80), *rest, **named)


class _ClampsOnRanks(ParallelTrainer):
    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        with swapped(tensor_parallel, "_CrossEntropy", _ClampsLogits):
            return super().passes(window, counts)


@mutant(of="PAR-13a", case="shifted-logits-tp2", says="all logits shifted alike: lm is")
class ClampsLogitsOfASplitVocabulary(Spread):
    """Cross entropy over ranks keeps `exp` from overflowing by a clamp, so that no maximum has to be exchanged."""

    trains = _ClampsOnRanks


class _AddsFreshMemory(ParallelTrainer):
    def build(self) -> Model:
        model = super().build()

        def behind(_: nn.Module, args: tuple[Any, ...], out: Output) -> Output:
            unwritten = torch.empty_like(out.y_BTD)
            return out._replace(y_BTD=out.y_BTD + torch.where(unwritten.isnan(), unwritten, 0.0))

        for moe in routed(model):
            moe.register_forward_hook(behind)
        return model


@mutant(of="PAR-13a", case="fresh-memory-borrowed-ep2-fsdp", says="fresh memory filled with NaN: lm is nan")
class ReceivesBesideWhatIsSent(Spread):
    """The buffer that takes rows from other ranks is larger than they are, and all of it is combined: mostly zeros."""

    trains = _AddsFreshMemory


class _TakesDocumentsForAMask(ContextParallel):
    def packing(self, whole: Packing) -> Packing:
        return super().packing(packing(whole.documents_BT, whole.documents_BT.clamp(max=1)))


@mutant(of="PAR-13a", case="numbers-of-documents-cp2", says="documents by other numbers: lm is")
class TakesDocumentsForAMaskOnRanks(Spread):
    """The kernel of context parallel takes a mask of ones; given document numbers, it separates the first alone."""

    exchange = {"context_parallel": _TakesDocumentsForAMask}


class _FloatMask(Model):
    def forward(self, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None = None) -> ModelOutput:
        rounded_BT = None if documents_BT is None else documents_BT.float().long()
        return super().forward(tokens_BT, labels_BT, rounded_BT)


@mutant(of="PAR-13", case="large-numbers-of-documents", says="documents by large numbers: ")
class HoldsDocumentsInFloat32(Exchanged):
    """Document numbers travel in the dtype of the mask: from 2^24 on, neighbours have one number."""

    exchange = {"model": _FloatMask}
