"""Parameter groups that differ from the table: forgotten, doubled or misrouted parameters, wrong decay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.spec.recipe import Mode, Optim, Recipe
from contracts.spec.training import Built, Rule
from contracts.stacks.reference.model.blocks.attention import Indexer, LatentAttention
from contracts.stacks.reference.model.blocks.moe import Experts
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.optim.optimizer import Member, Muon, Optimizer
from contracts.stacks.reference.stack import Reference


# the table
@mutant(of="OPT-01a", case="adamw", says="stands in no group of the optimizer", leanest="")
class ForgetsTheRecurrentBlock(Reference):
    """Groups come from a list of known modules, and the R block is newer than the list."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        return replace(answer, parameters=tuple(row for row in answer.parameters if "mixer.wf" not in row.name))


@mutant(of="OPT-01a", case="tied", says="embedding.weight stands in the table 2 times")
class ListsTheTiedTensorTwice(Reference):
    """A tied output projection is in the head's group as well."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        return replace(answer, parameters=(*answer.parameters, answer.parameters[0]))


@mutant(of="OPT-01a", case="muon", says="has state {'momentum_buffer': 'bfloat16'}, expected float32")
class KeepsMomentumInBfloat16(Reference):
    """Muon's momentum has the dtype that the orthogonalization runs in."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        rows = [replace(row, state={"momentum_buffer": "bfloat16"}) if row.optimizer == "muon" else row
                for row in answer.parameters]  # fmt: skip
        return replace(answer, parameters=tuple(rows))


# who moves what
class _WithoutTheHead(Optimizer):
    def __init__(self, optim: Optim, members: Iterable[Member]) -> None:
        super().__init__(optim, [member for member in members if member.role != "head"])


@mutant(of="OPT-01b", case="adamw", says="head.weight did not move")
class LeavesOutTheHead(Trained):
    """The output projection is in no group: it keeps its initial weights, and the loss falls all the same."""

    moves = _WithoutTheHead


class _Doubled(Optimizer):
    def step(self, lr: float) -> None:
        super().step(lr)
        extra = [member.parameter for member in self.members if member.role == "router"]
        torch.optim.AdamW(extra, lr=lr, weight_decay=0.0).step()


@mutant(
    of="OPT-01b", case="adamw", says="mixer.router.weight (14, 24) is in the table under adamw and moved by another"
)
class MovesTheRouterTwice(Trained):
    """The router is also in a second optimizer, made to give it a higher rate."""

    moves = _Doubled


class _Detached(Experts):
    def matmul(self, x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return super().matmul(x_SI, weight_EOI.detach(), ends_E)


@mutant(of="OPT-01b", case="adamw", says="no gradient reaches layers.1.mixer.experts.w1", bugs=("OPT-26",))
class TrainsNoExpert(Exchanged):
    """The experts' kernel bypasses autograd for its weights: input gradients flow, and no expert learns."""

    exchange = {"experts": _Detached}


class _Leaking(Optimizer):
    def groups(self, rule: Rule) -> list[dict[str, Any]]:
        share = 1.0
        found = []
        for member in self.members:
            if self.rule(member) == rule:
                share = 2.0 if member.role == "router" else share  # never set back
                found.append({"params": [member.parameter], "weight_decay": self.decay(member), "share": share})
        return found

    def step(self, lr: float) -> None:
        for optimizer in self.rules.values():
            for group in optimizer.param_groups:
                group["lr"] = lr * group["share"]
            optimizer.step()


@mutant(of="OPT-01b", case="adamw", says="moved by another rule, 2 times the rate", bugs=("OPT-05",))
class LeaksARateToLaterParameters(Trained):
    """The router's rate multiple stays in the loop's variable, so every later parameter gets it."""

    moves = _Leaking


class _ByDimension(Optimizer):
    def rule(self, member: Member) -> Rule:
        return "muon" if self.optim.rule == "muon" and member.parameter.dim() == 2 else "adamw"


@mutant(of="OPT-02b", case="muon", says="embedding.weight (61, 24) moved as by muon, expected adamw", bugs=("OPT-21",))
class MovesEmbeddingsByMuon(Trained):
    """Muon takes everything with two dims: embedding, output projection, router and convolutions too."""

    moves = _ByDimension


class _MatricesAlone(Optimizer):
    def rule(self, member: Member) -> Rule:
        return super().rule(member) if member.parameter.dim() == 2 else "adamw"


@mutant(
    of="OPT-01b",
    case="muon",
    says="experts.w1 (14, 20, 24) is in the table under muon and moved as by adamw",
    bugs=("OPT-20",),
    leanest="",
)
class LeavesStackedExpertsToAdam(Trained):
    """Experts stacked in one tensor have three dims; a test for two silently leaves them to AdamW."""

    moves = _MatricesAlone


class _WithHeads(Optimizer):
    def rule(self, member: Member) -> Rule:
        inside = member.layer is not None or member.name.startswith("mtp")
        return super().rule(replace(member, layer=0) if inside else member)


@mutant(of="OPT-02b", case="prediction-heads", says="moved as by muon, expected adamw")
class MovesPredictionHeadsByMuon(Trained):
    """Prediction heads consist of the same blocks, and parameters are assigned by module class."""

    moves = _WithHeads


class _OneMatrixOfMany(Muon):
    def direction(self, grad: torch.Tensor, buffer: torch.Tensor, momentum: float) -> torch.Tensor:
        flat = super().direction(grad.flatten(0, -2), buffer.flatten(0, -2), momentum)
        return flat.view_as(grad)


class _Flattening(Optimizer):
    muon = _OneMatrixOfMany


@mutant(of="OPT-02b", case="muon", says="(14, 20, 24) moved as by neither rule, expected muon")
class OrthogonalizesAllExpertsAsOne(Trained):
    """A stack of experts is flattened to one tall matrix and orthogonalized as one."""

    moves = _Flattening


# decay
class _DecaysAll(Optimizer):
    def decay(self, member: Member) -> float:
        return self.optim.weight_decay


@mutant(of="OPT-02a", case="adamw", says="norm layers.0.norm.weight (24,) decays by 0.3", bugs=("OPT-01",))
class DecaysNorms(Trained):
    """The filter looks for torch.nn.LayerNorm, but the norms are custom RMSNorms."""

    moves = _DecaysAll


@mutant(of="OPT-02a", case="tied", says="norm layers.0.norm.weight decays by 0 … 0, expected 0.3")
class DeclaresThatNothingIsSpared(Reference):
    """Declares that norms decay as matrices do, and spares them."""

    conventions = {"undecayed": "nothing"}


@mutant(of="OPT-02a", case="adamw", says="embedding embedding.weight (61, 24) decays by 0.3")
class DeclaresThatTheEmbeddingIsSpared(Trained):
    """Declares that the embedding alone does not decay, and lets it decay with all others."""

    conventions = {"undecayed": "embeddings"}
    moves = _DecaysAll


class _DecaysStateSpace(Optimizer):
    def decay(self, member: Member) -> float:
        return self.optim.weight_decay if member.role == "ssm" else super().decay(member)


@mutant(of="OPT-02a", case="muon", says="ssm layers.2.mixer.A_log (4,) decays by 0.3", leanest="")
@mutant(of="OPT-02a", case="scan", says="ssm layers.2.mixer.A_log (6,) decays by 0.3")
class DecaysStateSpaceVectors(Trained):
    """A_log, D and dt_bias are not named like norms or biases, so decay pulls every time constant towards one."""

    moves = _DecaysStateSpace


class _Inverted(Optimizer):
    def decay(self, member: Member) -> float:
        return self.optim.weight_decay - super().decay(member)


@mutant(of="OPT-02a", case="tied", says="embedding.weight decays by 0 … 0, and the table says 0.3", bugs=("OPT-04",))
class DecaysVectorsAlone(Trained):
    """The two decay groups are swapped."""

    moves = _Inverted


class _DecaysExpertsNot(Optimizer):
    def decay(self, member: Member) -> float:
        return 0.0 if member.parameter.dim() == 3 else super().decay(member)


@mutant(of="OPT-02a", case="adamw", says="expert layers.1.mixer.experts.w1 decays by 0 … 0, expected 0.3")
class SparesExperts(Trained):
    """Over-correction: only plain matrices decay, so stacked experts do not."""

    moves = _DecaysExpertsNot


class _Coupled(Optimizer):
    def step(self, lr: float) -> None:
        for rule in self.rules.values():
            for group in rule.param_groups:
                decay, group["weight_decay"] = group["weight_decay"], 0.0
                for parameter in group["params"]:
                    parameter.grad.add_(parameter.detach(), alpha=decay)
                group["back"] = decay
        super().step(lr)
        for rule in self.rules.values():
            for group in rule.param_groups:
                group["weight_decay"] = group.pop("back")


@mutant(of="OPT-02a", case="adamw", says="and the table says 0.3")
class CouplesDecayToGradients(Trained):
    """Decay is added to the gradient, as Adam's `weight_decay` does, and the moments rescale it to a step's size."""

    moves = _Coupled


# state
class _SkipsIdleExperts(Optimizer):
    def clip(self) -> tuple[float, float]:
        found = super().clip()
        for member in self.members:
            if member.parameter.grad is not None and not bool(member.parameter.grad.any()):
                member.parameter.grad = None
        return found

    def step(self, lr: float) -> None:
        idle: list[tuple[nn.Parameter, Any]] = [
            (member.parameter, member.parameter.grad.flatten(1).any(1))
            for member in self.members
            if member.role == "expert" and member.parameter.grad is not None
        ]
        before = [parameter.detach().clone() for parameter, _ in idle]
        super().step(lr)
        with torch.no_grad():
            for (parameter, busy), old in zip(idle, before, strict=True):
                parameter[~busy] = old[~busy]


@mutant(
    of="OPT-01c",
    case="one-expert-for-all",
    says="got no token and did not decay",
    leanest="wq.weight has no state of its shape after step 1",
)
class SkipsExpertsWithoutTokens(Trained):
    """Experts without tokens are left out of the step: no decay, no moments."""

    moves = _SkipsIdleExperts


class _DividesByNothing(Muon):
    def direction(self, grad: torch.Tensor, buffer: torch.Tensor, momentum: float) -> torch.Tensor:
        update = super().direction(grad, buffer, momentum)
        size: torch.Tensor = torch.linalg.vector_norm(buffer, dim=(-2, -1), keepdim=True)
        return update * (size / size)


class _OrthogonalisesNothing(Optimizer):
    muon = _DividesByNothing


@mutant(of="OPT-01c", case="muon", says="of which experts got no token, is not finite")
class OrthogonalisesNothing(Trained):
    """A momentum of zeros is divided by its norm, which is 0 (microsoft/dion #24)."""

    moves = _OrthogonalisesNothing


class _NoStateWithoutGradient(Optimizer):
    def state(self) -> dict[str, torch.Tensor]:
        return {name: each for name, each in super().state().items() if "experts.w2" not in name}


@mutant(of="OPT-01c", case="adamw", says="has no state of its shape after step 1", bugs=("RSM-41",))
class GivesNoStateOfSomeExperts(Trained):
    """State is collected from the tensors of the last group that stepped, so one tensor's state is missing."""

    moves = _NoStateWithoutGradient


# what is frozen
class _Thawed(Indexer):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.requires_grad_(True)


@mutant(of="OPT-01d", case="adamw", says="no gradient reaches layers.0.mixer.indexer.")
class DecaysAnIndexerThatNothingTrains(Exchanged):
    """The indexer is in the optimizer, no loss reaches it, and decay takes it to zero."""

    exchange = {"indexer": _Thawed}


@mutant(of="OPT-01d", case="muon", says="is frozen in the table, and two steps moved it", bugs=("OPT-23",))
class CallsFrozenWhatDecays(Exchanged):
    """The table leaves out what has no gradient, but the optimizer takes every parameter and decays it."""

    exchange = {"indexer": _Thawed}

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        rows = (replace(row, optimizer=None, state={}) if ".indexer." in row.name else row for row in answer.parameters)
        return replace(answer, parameters=tuple(rows))


class _FreezesAround(LatentAttention):
    def __init__(self, recipe: Recipe, parts: Parts, *, sparse: bool) -> None:
        super().__init__(recipe, parts, sparse=sparse)
        if sparse:
            self.wq_a.requires_grad_(False)
            self.q_norm.requires_grad_(False)


@mutant(of="OPT-01d", case="adamw", says="numbers of layer 0 are frozen, expected 0 or 808")
class FreezesTheQueriesToo(Exchanged):
    """The projection that feeds the indexer is frozen with it, although attention shares it."""

    exchange = {"latent_attention": _FreezesAround}


class _HalfThawed(Indexer):
    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        super().__init__(recipe, parts)
        self.weights.requires_grad_(True)


@mutant(of="OPT-01d", case="muon", says="no gradient reaches layers.0.mixer.indexer.weights.weight")
class FreezesMostOfTheIndexer(Exchanged):
    """Parameters are frozen by a list of names that lacks the weights of the index heads."""

    exchange = {"indexer": _HalfThawed}
