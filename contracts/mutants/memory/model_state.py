"""Stacks that miscount a model, or what a rank holds of it, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.capacity import Budget, Card, Line, ParameterCount, Spread, StageBudget
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference


def _of_lines(budget: Budget, change: Callable[[Line], Line]) -> Budget:
    """A budget with changed lines, and all totals recomputed."""
    stages = []
    for stage in budget.stages:
        lines = tuple(change(line) for line in stage.lines)
        stages.append(replace(stage, lines=lines, total_bytes=sum(line.bytes for line in lines)))
    return _of_stages(budget, lambda stage: stages[stage.stage])


def _of_stages(budget: Budget, change: Callable[[StageBudget], StageBudget]) -> Budget:
    stages = tuple(change(stage) for stage in budget.stages)
    return replace(budget, stages=stages, total_bytes=max(stage.total_bytes for stage in stages))


@mutant(of="MEM-02a", case="gqa-moe-tail", says="parameters of E is 37248")
class SeesOneExpert(Reference):
    """A dense estimate: an E block is one MLP of an expert's width; eleven of twelve experts are forgotten."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        assert recipe.moe is not None
        return super().count_parameters(replace(recipe, moe=replace(recipe.moe, experts=1, top_k=1)))


@mutant(of="MEM-02a", case="gqa-moe-tail", says="parameters of A is", bugs=("HYB-07",))
class CountsWholePeriods(Reference):
    """Counts depth // len(pattern) whole periods and drops the tail of the pattern."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        period = len(recipe.pattern)
        return super().count_parameters(replace(recipe, depth=recipe.depth // period * period))


@mutant(of="MEM-02a", case="gqa-moe-tail", says="parameters of A is")
class GivesEveryHeadItsKeys(Reference):
    """Counts grouped-query attention as multi-head attention: as many KV heads as query heads."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return super().count_parameters(replace(recipe, kv_groups=recipe.heads))


@mutant(of="MEM-02a", case="gqa-moe-tail", says="parameters that a token does not visit is 0")
class CallsEveryExpertActive(Reference):
    """Reports the total as the active parameters: a 4B mixture is compared with 4B dense models."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        counted = super().count_parameters(recipe)
        return replace(counted, active=counted.total)


@mutant(of="MEM-02a", case="swiglu", says="parameters of E is 208320")
class ForgetsTheGate(Reference):
    """Counts two matrices per MLP whatever the activation; SwiGLU has a third."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return super().count_parameters(replace(recipe, activation="relu2"))


@mutant(of="MEM-02a", case="tied", says="parameters of head is 96000", bugs=("TIE-07",))
class CountsTheTiedHeadAgain(Reference):
    """Counts over modules instead of tensors: a tied output projection counts twice."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return super().count_parameters(replace(recipe, untied_embeddings=True))


@mutant(of="MEM-02a", case="tied", says="the families add up to", bugs=("TIE-07",))
class SubtractsTheTiedHead(Reference):
    """Over-correction: the shared matrix is subtracted from a total that held it once."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        counted = super().count_parameters(recipe)
        shared = 0 if recipe.untied_embeddings else recipe.vocab * recipe.hidden
        return replace(counted, total=counted.total - shared, active=counted.active - shared)


@mutant(of="MEM-02a", case="mla", says="parameters of A is")
class CountsMlaAsGqa(Reference):
    """Has no formula for latent attention and silently uses the grouped-query one."""

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return super().count_parameters(replace(recipe, mla=None))


@mutant(of="MEM-02b", case="own-axis-tp2-ep3", says="the ranks hold")
class DividesTheTotal(Reference):
    """Divides all parameters by tp · ep, also norms and routers, which every rank holds whole."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        cut = spread.degrees.tp * spread.degrees.ep
        each = self.count_parameters(recipe).total // cut
        return _of_stages(super().budget(recipe, spread, card), lambda stage: replace(stage, parameters={"tp": each}))


@mutant(of="MEM-02b", case="borrowed-pp3-cp2-ep6", says="the ranks hold")
class EmbedsOnEveryStage(Reference):
    """Counts the embedding on each pipeline stage: the stage module is built from the whole model."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        table = recipe.vocab * recipe.hidden // spread.degrees.tp

        def embed(stage: StageBudget) -> StageBudget:
            more = table if stage.stage else 0
            return replace(stage, parameters={**stage.parameters, "tp": stage.parameters["tp"] + more})

        return _of_stages(super().budget(recipe, spread, card), embed)


@mutant(of="MEM-02c", case="own-axis-tp2-ep4-etp1", says="the ep share of a rank")
class CutsExpertsByTp(Reference):
    """Takes etp 1 for "follow TP": half of every expert is budgeted, and the whole is loaded."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return super().budget(recipe, replace(spread, degrees=replace(spread.degrees, etp=0)), card)


@mutant(of="MEM-02c", case="own-axis-ep3", says="the ep share of a rank")
class SpreadsTheSharedExpert(Reference):
    """Counts the shared expert as a routed one and cuts it by EP, though every rank runs all of it."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        assert recipe.moe is not None
        moe = replace(recipe.moe, shared_hidden=0, expert_hidden=recipe.moe.expert_hidden + recipe.moe.shared_hidden)
        return super().budget(replace(recipe, moe=moe), spread, card)


@mutant(of="MEM-02d", case="own-axis-full", says="weights go from")
class ShardsTheOptimizerAlone(Reference):
    """Plans FSDP2 as a distributed optimizer: weights and gradients whole on every rank."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return super().budget(
            recipe, replace(spread, sharding="optimizer" if spread.sharding == "full" else "none"), card
        )


@mutant(of="MEM-02d", case="borrowed-optimizer", says="weights go from")
class ShardsEverything(Reference):
    """Plans a distributed optimizer as FSDP2: weights that stay whole are divided."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return super().budget(recipe, replace(spread, sharding="full"), card)


@mutant(of="MEM-02d", case="own-axis-none", says="activations go from")
class ShardsActivations(Reference):
    """Divides by the world what does not fit one card, as if cards pooled their memory."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def pooled(line: Line) -> Line:
            return replace(line, bytes=line.bytes // spread.world) if line.part == "activations" else line

        return _of_lines(super().budget(recipe, spread, card), pooled)


@mutant(of="MEM-02e", case="bf16-whole", says="bytes of training state a bf16 parameter, sharding none, is 2.0")
class CountsWeightsAlone(Reference):
    """Budgets for loading only: two bytes per parameter, without gradients and optimizer state."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def loaded(line: Line) -> Line:
            return replace(line, bytes=0) if line.part in {"gradients", "optimizer"} else line

        return _of_lines(super().budget(recipe, spread, card), loaded)


@mutant(of="MEM-02e", case="fp32-whole", says="sharding none, is 20.0, expected 16.0")
class KeepsAMasterOfFloat32(Reference):
    """Over-correction: master copies are budgeted for parameters that are already float32."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def mastered(line: Line) -> Line:
            whole = line.part == "optimizer" and recipe.dtype == "fp32"
            return replace(line, bytes=line.bytes * 12 // 8) if whole else line

        return _of_lines(super().budget(recipe, spread, card), mastered)


@mutant(of="MEM-02f", case="micro-batch-4", says="bytes of activations of 4 sequences is")
class ForgetsTheMicroBatch(Reference):
    """Uses a formula for one sequence with four."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return super().budget(replace(recipe, batch=replace(recipe.batch, micro=1)), spread, card)


@mutant(of="MEM-02f", case="micro-batch-1", says="bytes of activations of 1 sequences is")
class KeepsTheResidualAlone(Reference):
    """Counts one tensor per layer, 2 bytes per element: right only with full recomputation, which the recipe does not
    use.
    """

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def residual(line: Line) -> Line:
            return replace(line, bytes=line.bytes // 17) if line.part == "activations" else line

        return _of_lines(super().budget(recipe, spread, card), residual)


@mutant(of="MEM-02g", case="as-many-as-stages", says="activations of stage 0 of 4 with 4 micro batches")
class DividesActivationsByStages(Reference):
    """Divides activations by the stages, as the layers are divided, and forgets the passes in flight."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def one_pass(line: Line) -> Line:
            return replace(line, bytes=line.bytes // spread.degrees.pp) if line.part == "activations" else line

        return _of_lines(super().budget(recipe, spread, card), one_pass)


@mutant(of="MEM-02g", case="two-for-four-stages", says="activations of stage 0 of 4 with 2 micro batches")
class FillsThePipelineAlways(Reference):
    """Over-correction: always counts pp passes in flight, even where a step has fewer microbatches than stages."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        batch = replace(recipe.batch, total=max(recipe.batch.total, recipe.batch.micro * spread.degrees.pp))
        return super().budget(replace(recipe, batch=batch), spread, card)


@mutant(of="MEM-02h", case="ep4-brings-its-own", says="bytes of routing buffers")
class SharesOneBatchEverywhere(Reference):
    """Divides the buffers by ep in the borrowed layout, where each rank of the EP group brings its own tokens."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        def divided(line: Line) -> Line:
            borrowed = spread.layout == "borrowed" and line.part == "routing"
            return replace(line, bytes=line.bytes // spread.degrees.ep) if borrowed else line

        return _of_lines(super().budget(recipe, spread, card), divided)


@mutant(of="MEM-02h", case="ep1", says="bytes of routing buffers")
class CountsEachTokenOnce(Reference):
    """Buffers hold each token once, though it goes to top-k experts."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        assert recipe.moe is not None
        return super().budget(replace(recipe, moe=replace(recipe.moe, top_k=1)), spread, card)


@mutant(of="MEM-02n", case="micro-batch-4", says="bytes of activations of 4 recomputed sequences")
class RecomputesAndPlansAsBefore(Reference):
    """Budgets a recomputed model as if it kept everything: a lane that fits is refused."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return super().budget(replace(recipe, recompute="none"), spread, card)


@mutant(of="MEM-02n", case="micro-batch-1", says="bytes of activations of 1 recomputed sequences")
class RecomputesForNothing(Reference):
    """Counts no activations at all under recomputation, and is out of memory at the first backward pass."""

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        budget = super().budget(recipe, spread, card)
        stages = tuple(
            replace(stage, lines=tuple(line for line in stage.lines if line.what != "inputs of blocks"))
            for stage in budget.stages
        )
        return replace(budget, stages=stages)
