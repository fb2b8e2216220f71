"""Parameter groups that differ from the table: forgotten, doubled or misrouted parameters, wrong decay."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from contracts.law._bugs.numeric import (
    Indexer,
    LatentAttention,
    Model,
    Muon,
    Optimizer,
    Reference,
    Trainer,
    broken,
    derived,
    mutant,
    orthogonalise,
    with_attributes,
)
from contracts.spec import Optim, Rule
from contracts.stacks.reference.optim.optimizer import MOMENTUM, Member


# the table
@broken(Reference, "built", "OPT-01a[adamw]: stands in no group of the optimizer", leanest="")
def forgets_the_recurrent_block(built, self, recipe, mode):
    """Groups come from a list of known modules, and the R block is newer than the list."""
    answer = built(self, recipe, mode)
    return replace(answer, parameters=tuple(row for row in answer.parameters if "mixer.wf" not in row.name))


@broken(Reference, "built", "OPT-01a[tied]: embedding.weight stands in the table 2 times")
def lists_the_tied_tensor_twice(built, self, recipe, mode):
    """A tied output projection is in the head's group as well."""
    answer = built(self, recipe, mode)
    return replace(answer, parameters=(*answer.parameters, answer.parameters[0]))


@broken(Reference, "built", "OPT-01a[muon]: has state {'momentum_buffer': 'bfloat16'}, expected float32")
def keeps_momentum_in_bfloat16(built, self, recipe, mode):
    """Muon's momentum has the dtype that the orthogonalization runs in."""
    answer = built(self, recipe, mode)
    rows = [replace(row, state={"momentum_buffer": "bfloat16"}) if row.optimizer == "muon" else row
            for row in answer.parameters]  # fmt: skip
    return replace(answer, parameters=tuple(rows))


# who moves what
@broken(Optimizer, "__init__", "OPT-01b[adamw]: head.weight did not move")
def leaves_out_the_head(init, self, optim, members, *rates):
    """The output projection is in no group: it keeps its initial weights, and the loss falls all the same."""
    init(self, optim, [member for member in members if member.role != "head"], *rates)


@broken(
    Optimizer, "step", "OPT-01b[adamw]: mixer.router.weight (14, 24) is in the table under adamw and moved by another"
)
def moves_the_router_twice(step, self, lr):
    """The router is also in a second optimizer, made to give it a higher rate."""
    step(self, lr)
    extra = [member.parameter for member in self.members if member.role == "router"]
    torch.optim.AdamW(extra, lr=lr, weight_decay=0.0).step()


@derived("OPT-01b[adamw]: moved by another rule, 2 times the rate", bugs=("OPT-05",))
class LeaksARateToLaterParameters(Optimizer):
    """The router's rate multiple stays in the loop's variable, so every later parameter gets it."""

    def groups(self, rule: Rule) -> list[dict[str, Any]]:
        share = 1.0
        found = []
        for member in self.members:
            if self.rule(member) == rule:
                share = 2.0 if member.role == "router" else share  # never set back
                found.append({"params": [member.parameter], "weight_decay": self.decay(member), "share": share})
        return found


@broken(
    Optimizer, "rule", "OPT-02b[muon]: embedding.weight (61, 24) moved as by muon, expected adamw", bugs=("OPT-21",)
)
def moves_embeddings_by_muon(rule, self, member):
    """Muon takes everything with two dims: embedding, output projection, router and convolutions too."""
    return "muon" if self.optim.rule == "muon" and member.parameter.dim() == 2 else "adamw"


class _MatricesAlone(Optimizer):
    def rule(self, member: Member) -> Rule:
        return super().rule(member) if member.parameter.dim() == 2 else "adamw"


with_attributes(
    "LeavesStackedExpertsToAdam",
    "Experts stacked in one tensor have three dims; a test for two silently leaves them to AdamW.",
    "OPT-01b[muon]: experts.w1 (14, 20, 24) is in the table under muon and moved as by adamw",
    owner=Trainer,
    bugs=("OPT-20",),
    leanest="",
    optimizer_class=_MatricesAlone,
)


class _StackedBiasesToo(Optimizer):
    def rule(self, member: Member) -> Rule:
        return "muon" if member.role == "bias" and member.parameter.dim() == 2 else super().rule(member)


with_attributes(
    "TakesStackedBiasesForMatrices",
    "The biases of all experts are one tensor of two dims, and Muon takes it for a matrix.",
    "OPT-01b[muon-biased]: experts.b1 (14, 20) is in the table under adamw and moved as by muon",
    owner=Trainer,
    leanest="",
    optimizer_class=_StackedBiasesToo,
)


@broken(Optimizer, "rule", "OPT-02b[prediction-heads]: moved as by muon, expected adamw")
def moves_prediction_heads_by_muon(rule, self, member):
    """Prediction heads consist of the same blocks, and parameters are assigned by module class."""
    inside = member.layer is not None or member.name.startswith("mtp")
    return rule(self, replace(member, layer=0) if inside else member)


@broken(Muon, "direction", "OPT-02b[muon]: (14, 20, 24) moved as by neither rule, expected muon")
def orthogonalizes_all_experts_as_one(direction, self, grad, buffer, momentum):
    """A stack of experts is flattened to one tall matrix and orthogonalized as one."""
    flat = direction(self, grad.flatten(0, -2), buffer.flatten(0, -2), momentum)
    return flat.view_as(grad)


# decay
@broken(Optimizer, "decay", "OPT-02a[adamw]: norm layers.0.norm.weight (24,) decays by 0.3", bugs=("OPT-01",))
def decays_norms(decay, self, member):
    """The filter looks for torch.nn.LayerNorm, but the norms are custom RMSNorms."""
    return self.optim.weight_decay


class _SparesNobody(Optimizer):
    def decay(self, member: Member) -> float:
        return self.optim.weight_decay


class _OutsideLayers(Optimizer):
    def __init__(self, optim: Optim, members: Iterable[Member], *rates: Any) -> None:
        super().__init__(optim, [each for each in members if each.layer is None], *rates)


class _Wrapped(Trainer):
    """A layer that is recomputed is wrapped, and the names of its parameters have another prefix."""

    by_name: type[Optimizer]

    def build(self) -> Model:
        self.optimizer_class = Optimizer if self.recipe.recompute == "none" else self.by_name
        return super().build()


with_attributes(
    "MissesNormsOfWrappedLayers",
    "What spares norms from decay looks for them by name.",
    "OPT-02a[recomputed]: norm layers.0.norm.weight (24,) decays by 0.3",
    owner=_Wrapped,
    by_name=_SparesNobody,
)

with_attributes(
    "LeavesWrappedLayersOut",
    "Groups are made by the names of layers, and what is wrapped is in none of them.",
    "OPT-01b[recomputed]: layers.0.norm.weight did not move",
    owner=_Wrapped,
    by_name=_OutsideLayers,
)

with_attributes(
    "DeclaresThatNothingIsSpared",
    "Declares that norms decay as matrices do, and spares them.",
    "OPT-02a[tied]: norm layers.0.norm.weight decays by 0 … 0, expected 0.3",
    conventions={"undecayed": "nothing"},
)

with_attributes(
    "DeclaresThatTheEmbeddingIsSpared",
    "Declares that only the embedding does not decay, and lets it decay with all others.",
    "OPT-02a[adamw]: embedding embedding.weight (61, 24) decays by 0.3",
    owner=decays_norms,
    conventions={"undecayed": "embeddings"},
)


@mutant(of="OPT-02a", case="muon", says="ssm layers.2.mixer.A_log (4,) decays by 0.3", leanest="")
@broken(Optimizer, "decay", "OPT-02a[scan]: ssm layers.2.mixer.A_log (6,) decays by 0.3")
def decays_state_space_vectors(decay, self, member):
    """A_log, D and dt_bias are not named like norms or biases, so decay pulls every time constant towards one."""
    return self.optim.weight_decay if member.role == "ssm" else decay(self, member)


@broken(
    Optimizer, "decay", "OPT-02a[author-dp]: bias layers.2.mixer.b_bias (4, 16) decays by 0.3",
    "OPT-02a[biased]: bias layers.1.mixer.experts.b1 (14, 20) decays by 0.3", leanest="",
)  # fmt: skip
def decays_what_has_two_dims(decay, self, member):
    """Decay is for what has two dims or more, and stacked biases have two: of experts, and of Mamba-3's B and C."""
    return self.optim.weight_decay if member.parameter.dim() > 1 else decay(self, member)


class _Inverted(Optimizer):
    def decay(self, member: Member) -> float:
        return self.optim.weight_decay - super().decay(member)


with_attributes(
    "DecaysVectorsAlone",
    "The two decay groups are swapped.",
    "OPT-02a[tied]: embedding.weight decays by 0 … 0, and the table says 0.3",
    owner=Trainer,
    bugs=("OPT-04",),
    optimizer_class=_Inverted,
)


@broken(Optimizer, "decay", "OPT-02a[adamw]: expert layers.1.mixer.experts.w1 decays by 0 … 0, expected 0.3")
def spares_experts(decay, self, member):
    """Over-correction: only plain matrices decay, so stacked experts do not."""
    return 0.0 if member.parameter.dim() == 3 else decay(self, member)


@broken(Optimizer, "step", "OPT-02a[adamw]: and the table says 0.3")
def couples_decay_to_gradients(step, self, lr):
    """Decay is added to the gradient, as Adam's `weight_decay` does, and the moments rescale it to a step's size."""
    for rule in self.rules.values():
        for group in rule.param_groups:
            decay, group["weight_decay"] = group["weight_decay"], 0.0
            for parameter in group["params"]:
                parameter.grad.add_(parameter.detach(), alpha=decay)
            group["back"] = decay
    step(self, lr)
    for rule in self.rules.values():
        for group in rule.param_groups:
            group["weight_decay"] = group.pop("back")


@derived(
    "OPT-01c[one-expert-for-all]: got no token and did not decay",
    leanest="wq.weight has no state of its shape after step 1",
)
class SkipsExpertsWithoutTokens(Optimizer):
    """Experts without tokens are left out of the step: no decay, no moments."""

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


OF_ONE_INPUT = (("w1", "w3"), ("wz", "wx", "wb", "wc", "wdt"))


class _Stacks(Optimizer):
    @torch.no_grad()
    def step(self, lr: float) -> None:
        held = {each.name: each for each in self.members if self.rule(each) == "muon"}
        start = {name: each.parameter.clone() for name, each in held.items()}
        super().step(lr)
        for first, stems in ((name, stems) for stems in OF_ONE_INPUT for name in held if stems[0] in name):
            several = [held[other] for stem in stems if (other := first.replace(stems[0], stem)) in held]
            buffers = [self.rules["muon"].state[each.parameter]["momentum_buffer"] for each in several]
            given = [each.parameter.grad + MOMENTUM * own for each, own in zip(several, buffers, strict=True)]
            turned = orthogonalise(torch.cat(given, dim=-2))
            size = 0.2 * math.sqrt(max(turned.shape[-2:]))
            parts = torch.split(turned, [each.parameter.shape[-2] for each in several], dim=-2)
            for each, part in zip(several, parts, strict=True):
                each.parameter.copy_(start[each.name] * (1 - lr * self.decay(each)) - lr * size * part)


TurnsProjectionsAsOneMatrix = with_attributes(
    "TurnsProjectionsAsOneMatrix",
    "Projections of one input lie in one tensor, and Muon takes that for a matrix.",
    "OPT-01b[streams-and-swiglu]: is in the table under muon and moved by another rule",
    owner=Trainer,
    optimizer_class=_Stacks,
)

with_attributes(
    "DeclaresThatProjectionsAreStacked",
    "Declares projections of one input as one matrix, and turns each by itself.",
    "OPT-01b[streams-and-swiglu]: is in the table under muon and moved by another rule",
    conventions={"muon-projections": "stacked"},
)


@broken(Optimizer, "groups", "OPT-01c[half-muon]: router.weight has no state of its shape after step 1")
def leaves_matrices_that_muon_spares_to_nobody(groups, self, rule):
    """What hands matrices to Muon and what hands the others to AdamW do not share the list of what Muon spares."""
    spared = {id(each.parameter) for each in self.members if each.role == "router" and self.optim.rule == "muon"}
    found = groups(self, rule)
    return [{**group, "params": [each for each in group["params"] if id(each) not in spared]} for group in found]


@broken(Muon, "direction", "OPT-01c[muon]: of which experts got no token, is not finite")
def orthogonalises_nothing(direction, self, grad, buffer, momentum):
    """A momentum of zeros is divided by its norm, which is 0 (microsoft/dion #24)."""
    update = direction(self, grad, buffer, momentum)
    size = torch.linalg.vector_norm(buffer, dim=(-2, -1), keepdim=True)
    return update * (size / size)


@broken(Optimizer, "state", "OPT-01c[adamw]: has no state of its shape after step 1", bugs=("RSM-41",))
def gives_no_state_of_some_experts(state, self):
    """State is collected from the tensors of the last group that stepped, so one tensor's state is missing."""
    return {name: each for name, each in state(self).items() if "experts.w2" not in name}


# what is frozen
@broken(Indexer, "__init__", "OPT-01d[adamw]: no gradient reaches layers.0.mixer.indexer.")
def decays_an_indexer_that_nothing_trains(init, self, recipe, parts):
    """The indexer is in the optimizer, no loss reaches it, and decay takes it to zero."""
    init(self, recipe, parts)
    self.requires_grad_(True)


@mutant(of="OPT-01d", case="muon", says="is frozen in the table, and two steps moved it", bugs=("OPT-23",))
class CallsFrozenWhatDecays(decays_an_indexer_that_nothing_trains):
    """The table leaves out what has no gradient, but the optimizer takes every parameter and decays it."""

    def built(self, recipe, mode):
        answer = super().built(recipe, mode)
        rows = (replace(row, optimizer=None, state={}) if ".indexer." in row.name else row for row in answer.parameters)
        return replace(answer, parameters=tuple(rows))


@broken(LatentAttention, "__init__", "OPT-01d[adamw]: numbers of layer 0 are frozen, expected 0 or 808")
def freezes_the_queries_too(init, self, recipe, parts, *, sparse):
    """The projection that feeds the indexer is frozen with it, although attention shares it."""
    init(self, recipe, parts, sparse=sparse)
    if sparse:
        self.wq_a.requires_grad_(False)
        self.q_norm.requires_grad_(False)


@broken(Indexer, "__init__", "OPT-01d[muon]: no gradient reaches layers.0.mixer.indexer.weights.weight")
def freezes_most_of_the_indexer(init, self, recipe, parts):
    """Parameters are frozen by a list of names that lacks the weights of the index heads."""
    init(self, recipe, parts)
    self.weights.requires_grad_(True)
