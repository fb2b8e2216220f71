"""The whole model as a value: what was built, what it starts from, and one pass through it (spec/training.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from contracts.instruments import numerics
from contracts.spec import (
    Arrays,
    Built,
    BuiltLayer,
    Element,
    Execution,
    Mode,
    Parameter,
    Pass,
    Recipe,
    Role,
    Rule,
    Tokens,
)
from contracts.stacks.reference.answers.base import BuiltOfParts

if TYPE_CHECKING:  # torch is loaded when a model is asked for, not when the stack is introduced
    from torch import Tensor, nn

    from contracts.stacks.reference.model.hybrid_model import Layer, Model

IN_FLOAT32: frozenset[Role] = frozenset({"norm", "router", "ssm", "mixing"})
"""Roles that compute in float32 whatever the activations are."""
STATE: Mapping[Rule, Mapping[str, Element]] = {
    "adamw": {"step": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"},
    "muon": {"momentum_buffer": "float32"},
}


class ModelAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        import torch

        from contracts.stacks.reference.model.init import SkipInit

        parts = self.parts()
        with torch.device("meta"), SkipInit():
            model = parts.model(recipe, mode, parts)
        layers = tuple(_layer(int(number), layer) for number, layer in model.layers.items())  # type: ignore[arg-type]
        features = {"tied_embeddings" if model.head is None else "untied_embeddings"} | (
            {"mtp"} if model.mtp else set()
        )
        buffers = {name: tuple(each.shape) for name, each in model.named_buffers()}
        return Built(layers=layers, parameters=_rows(model), features=frozenset(features), buffers=buffers)

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        from contracts.stacks.reference.model.build import build_model

        return numerics.arrays(build_model(recipe, Execution(mode=mode), self.parts()).state_dict())

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        from contracts.stacks.kit.exact_kernels import exact_kernels
        from contracts.stacks.reference.model.build import build_model

        model = build_model(recipe, execution, self.parts(), weights)
        with exact_kernels(execution.device):
            return forward_pass(model, execution, batch, backward=backward)


def forward_pass(model: Model, execution: Execution, batch: Tokens, *, backward: bool) -> Pass:
    """One pass over a batch, in the microbatches of the execution, and its gradients if they are wanted."""
    import torch

    given = (batch.tokens, batch.labels, *([batch.documents] if batch.documents else []))
    held = [numerics.tensor(each).to(execution.device) for each in given]
    with torch.set_grad_enabled(backward):
        passes = [model(*piece) for piece in zip(*(each.chunk(execution.microbatches) for each in held), strict=True)]
        sums = {name: torch.stack([each.sums[name] for each in passes]).sum(0) for name in passes[0].sums}
        counts = {name: torch.stack([each.counts[name] for each in passes]).sum(0) for name in passes[0].counts}
        losses = model.objective(sums, counts)
    gradients = {}
    if backward:
        leaves = {name: each for name, each in model.named_parameters() if each.requires_grad}
        found = torch.autograd.grad(losses["total"], list(leaves.values()), allow_unused=True)
        gradients = {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
    further = zip(*(each.mtp_logits for each in passes), strict=True)
    return Pass(
        logits=numerics.array(torch.cat([each.logits_BTV for each in passes])),
        mtp_logits=tuple(numerics.array(torch.cat(depth)) for depth in further),
        losses={name: float(loss.detach()) for name, loss in losses.items()},
        gradients=numerics.arrays(gradients),
        seen=numerics.arrays({name: sum(each.seen[name] for each in passes) for name in _counted(passes[0].seen)}),
    )


def _counted(seen: Mapping[str, Tensor]) -> list[str]:
    """The entries of a pass that are counts, so that passes add up."""
    return [name for name in seen if name.endswith(".counts")]


def _layer(number: int, layer: Layer) -> BuiltLayer:
    family, features = _witnesses(layer.mixer)
    if layer.streams is not None:
        features = features | {"mhc"}
    count = sum(each.numel() for each in layer.parameters())
    return BuiltLayer(number=number, family=family, features=frozenset(features), parameters=count)


def _witnesses(mixer: nn.Module) -> tuple[str, set[str]]:
    """The family of a mixer and the features that stand in it, by its modules and their sizes."""
    from contracts.stacks.reference.model import blocks
    from contracts.stacks.reference.model.blocks import M2RNN, Attention, LatentAttention, Mamba2, Mlp, MoE

    if isinstance(mixer, blocks.ParallelMixers):
        return "A", {"parallel_ssm"}.union(*(_witnesses(each)[1] for each in (mixer.attention, mixer.ssm)))
    names = {name for name, _ in (*mixer.named_parameters(), *mixer.named_buffers())}
    found: set[str] = set()
    if isinstance(mixer, Attention):
        found |= {"rope"} | ({"gqa"} if mixer.wk.out_features < mixer.wq.out_features else set())
        return "A", found | ({"qk_norm"} if {"q_norm.weight", "k_norm.weight"} <= names else set())
    if isinstance(mixer, LatentAttention):
        return "A", {"mla", "rope"} | ({"dsa"} if mixer.indexer is not None else set())
    if isinstance(mixer, MoE):
        found |= {"moe", "swiglu" if "experts.w3" in names else "relu2"}
        found |= {"shared_expert"} if mixer.shared is not None else set()
        return "E", found | ({"selection_bias"} if "router.bias" in names else set())
    if isinstance(mixer, Mlp):
        return "E", {"swiglu" if "w3.weight" in names else "relu2"}
    if isinstance(mixer, M2RNN):
        return "R", {"m2rnn"}
    return "M", {"mamba2" if isinstance(mixer, Mamba2) else "mamba3"}


def _rows(model: Model) -> tuple[Parameter, ...]:
    """A row for each parameter, routed as the optimizer routes it; no rule moves one that is frozen."""
    from contracts.stacks.kit.roles import layer_of, role_of
    from contracts.stacks.reference.optim.optimizer import Optimizer, members

    optimizer = Optimizer(model.recipe.optim, members(model))
    moved = {member.name: member for member in optimizer.members}
    activations = cast(Element, str(model.activations).removeprefix("torch."))
    rows = []
    for name, parameter in model.named_parameters():
        member, role = moved.get(name), role_of(name)
        rule = None if member is None else optimizer.rule(member)
        rows.append(
            Parameter(
                name=name,
                shape=tuple(parameter.shape),
                dtype=cast(Element, str(parameter.dtype).removeprefix("torch.")),
                compute="float32" if role in IN_FLOAT32 else activations,
                role=role,
                layer=layer_of(name),
                optimizer=rule,
                weight_decay=0.0 if member is None else optimizer.decay(member),
                state={} if rule is None else STATE[rule],
            )
        )
    return tuple(rows)
