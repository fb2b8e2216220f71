"""A dry run of one training step on fake tensors: the real model, parallelism, trainer and optimizer, without memory.

Four things differ from a real step. Initial weights are not drawn. The router's choice is given. A recurrence takes all
tokens at once, and a scan takes longer chunks; neither communicates. Pipeline stages know what other stages hold,
which they otherwise exchange when the model is built.

B sequences · T tokens · E experts · h heads · n state · p head_dim
"""

import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contracts.instruments import dry_run
from contracts.spec import Execution, Holding, Recipe, Rehearsal, Routing
from contracts.stacks.kit import dry_runs
from contracts.stacks.kit.roles import of_experts
from contracts.stacks.reference.model.blocks import M2RNN, Packing, Router
from contracts.stacks.reference.model.init import Initializer
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.optim.optimizer import Member
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer
from contracts.stacks.reference.training.trainer import Batch, Trainer

CHUNK = 1024  # tokens of a chunk of a scan: of 64, half of a step's operators would be theirs


@functools.lru_cache(maxsize=64)  # several questions are about one step, which takes a second or a minute
def dry_run_step(
    recipe: Recipe, execution: Execution, rank: int, routing: Routing, kind: type[Trainer], parts: Parts
) -> Rehearsal:
    """One step of trainer `kind`, built from `parts`, on one rank of the execution's world."""
    if issubclass(kind, PipelineTrainer):
        kind = type("Rehearsed", (_KnownStages, kind), {})
    with dry_run.simulated_world(execution.world, rank) as world:
        trainer = kind(recipe, execution, _on_shapes(parts, routing))
        built = len(world.issued)
        tokens_BT = torch.zeros(recipe.batch.total, recipe.seq_length, dtype=torch.int64)
        trainer.step(trainer.share(Batch(tokens_BT, tokens_BT)))
        issued = world.issued[built:]
        held = {member.name: _holding(trainer, member) for member in trainer.optimizer.members}
        trainer.close()
    experts = frozenset(member.name for member in trainer.optimizer.members if of_experts(member.name))
    return dry_runs.rehearsal(issued, held, experts)


def _on_shapes(parts: Parts, routing: Routing) -> Parts:
    """The table of parts, of which some compute less."""
    return replace(
        parts,
        initial=type("Rehearsed", (_Undrawn, parts.initial), {}),
        router=type("Rehearsed", (_Stated, parts.router), {"routing": routing}),
        mamba2=type("Rehearsed", (_InLongChunks, parts.mamba2), {}),
        mamba3=type("Rehearsed", (_InLongChunks, parts.mamba3), {}),
        recurrent=type("Rehearsed", (_AllAtOnce, parts.recurrent), {}),
    )


class _Undrawn(Initializer):
    def fill(self, model: nn.Module, given: Collection[str] = ()) -> None:
        """Nothing: there is nothing to fill."""


class _Stated(Router):
    routing: Routing

    def choose(self, scores_BTE: Tensor) -> Tensor:
        rows, tokens, experts = scores_BTE.shape
        chosen = self.moe.top_k
        of_token_BTK = torch.arange(rows * tokens * chosen).view(rows, tokens, chosen)
        return of_token_BTK % (experts if self.routing == "balanced" else chosen)


class _InLongChunks(nn.Module):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.chunk = CHUNK


class _AllAtOnce(M2RNN):
    def recur(self, k_BThn: Tensor, v_BThp: Tensor, f_BTh: Tensor, packing: Packing, state: Tensor | None) -> Tensor:
        """Every token as though it were the first."""
        h_BThnp = torch.zeros_like(k_BThn[..., :, None] * v_BThp[..., None, :])
        if state is not None:
            h_BThnp = h_BThnp + state[:, None]
        return self.step(h_BThnp, k_BThn, v_BThp, f_BTh[..., None, None])


class _KnownStages(PipelineTrainer):
    def holders(self) -> dict[str, list[int]]:
        ranks, found = self.mesh.place("pp"), dict[str, list[int]]()
        for at, rank in enumerate(ranks):
            own = [self.part(piece) for piece in self.plan() if piece.stage % len(ranks) == at]
            for name in dict.fromkeys(name for stage in own for name, _ in stage.named_parameters()):
                found.setdefault(name, []).append(rank)
        return found

    def over_parts(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Without what other stages found."""
        return super(PipelineTrainer, self).over_parts(values)


def _holding(trainer: Trainer, member: Member) -> Holding:
    """What the optimizer has of a parameter, and what the model has of it: after a step both have the same part."""
    parameter = member.parameter
    states = [rule.state[parameter] for rule in trainer.optimizer.rules.values() if parameter in rule.state]
    return dry_runs.holding(trainer.model.get_parameter(member.name), parameter, states)
