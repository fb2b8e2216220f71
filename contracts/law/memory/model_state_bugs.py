"""Stacks that miscount a model, or what a rank holds of it, in one place."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


def _of_lines(budget, change):
    """A budget with changed lines, and all totals recomputed."""
    stages = []
    for stage in budget.stages:
        lines = tuple(change(line) for line in stage.lines)
        stages.append(replace(stage, lines=lines, total_bytes=sum(line.bytes for line in lines)))
    return _of_stages(budget, lambda stage: stages[stage.stage])


def _of_stages(budget, change):
    stages = tuple(change(stage) for stage in budget.stages)
    return replace(budget, stages=stages, total_bytes=max(stage.total_bytes for stage in stages))


@broken(Reference, "count_parameters", "MEM-02a[gqa-moe-tail]: parameters of E is 37248")
def sees_one_expert(count_parameters, self, recipe):
    """A dense estimate: an E block is one MLP of an expert's width; eleven of twelve experts are forgotten."""
    return count_parameters(self, replace(recipe, moe=replace(recipe.moe, experts=1, top_k=1)))


@broken(Reference, "count_parameters", "MEM-02a[gqa-moe-tail]: parameters of A is", bugs=("HYB-07",))
def counts_whole_periods(count_parameters, self, recipe):
    """Counts depth // len(pattern) whole periods and drops the tail of the pattern."""
    period = len(recipe.pattern)
    return count_parameters(self, replace(recipe, depth=recipe.depth // period * period))


@broken(Reference, "count_parameters", "MEM-02a[gqa-moe-tail]: parameters of A is")
def gives_every_head_its_keys(count_parameters, self, recipe):
    """Counts grouped-query attention as multi-head attention: as many KV heads as query heads."""
    return count_parameters(self, replace(recipe, kv_groups=recipe.heads))


@broken(
    Reference,
    "count_parameters",
    "MEM-02a[gqa-moe-tail]: parameters that a token does not visit is 0",
    "PAT-12b[tiny-nam56r]: parameters are active",
)
def calls_every_expert_active(count_parameters, self, recipe):
    """Reports the total as the active parameters: a 4B mixture is compared with 4B dense models."""
    counted = count_parameters(self, recipe)
    return replace(counted, active=counted.total)


@broken(Reference, "count_parameters", "MEM-02a[swiglu]: parameters of E is 208320")
def forgets_the_gate(count_parameters, self, recipe):
    """Counts two matrices per MLP whatever the activation; SwiGLU has a third."""
    return count_parameters(self, replace(recipe, activation="relu2"))


@broken(Reference, "count_parameters", "MEM-02a[tied]: parameters of head is 96000", bugs=("TIE-07",))
def counts_the_tied_head_again(count_parameters, self, recipe):
    """Counts over modules instead of tensors: a tied output projection counts twice."""
    return count_parameters(self, replace(recipe, untied_embeddings=True))


@broken(Reference, "count_parameters", "MEM-02a[tied]: the families add up to", bugs=("TIE-07",))
def subtracts_the_tied_head(count_parameters, self, recipe):
    """Over-correction: the shared matrix is subtracted from a total that held it once."""
    counted = count_parameters(self, recipe)
    shared = 0 if recipe.untied_embeddings else recipe.vocab * recipe.hidden
    return replace(counted, total=counted.total - shared, active=counted.active - shared)


@broken(Reference, "count_parameters", "MEM-02a[mla]: parameters of A is")
def counts_mla_as_gqa(count_parameters, self, recipe):
    """Has no formula for latent attention and silently uses the grouped-query one."""
    return count_parameters(self, replace(recipe, mla=None))


@broken(Reference, "budget", "MEM-02b[own-axis-tp2-ep3]: the ranks hold")
def divides_the_total(budget, self, recipe, spread, card):
    """Divides all parameters by tp · ep, also norms and routers, which every rank holds whole."""
    cut = spread.degrees.tp * spread.degrees.ep
    each = self.count_parameters(recipe).total // cut
    return _of_stages(budget(self, recipe, spread, card), lambda stage: replace(stage, parameters={"tp": each}))


@broken(Reference, "budget", "MEM-02b[borrowed-pp3-cp2-ep6]: the ranks hold")
def embeds_on_every_stage(budget, self, recipe, spread, card):
    """Counts the embedding on each pipeline stage: the stage module is built from the whole model."""
    table = recipe.vocab * recipe.hidden // spread.degrees.tp

    def embed(stage):
        more = table if stage.stage else 0
        return replace(stage, parameters={**stage.parameters, "tp": stage.parameters["tp"] + more})

    return _of_stages(budget(self, recipe, spread, card), embed)


@broken(Reference, "budget", "MEM-02c[own-axis-tp2-ep4-etp1]: the ep share of a rank")
def cuts_experts_by_tp(budget, self, recipe, spread, card):
    """Takes etp 1 for "follow TP": half of every expert is budgeted, and the whole is loaded."""
    return budget(self, recipe, replace(spread, degrees=replace(spread.degrees, etp=0)), card)


@broken(Reference, "budget", "MEM-02c[own-axis-ep3]: the ep share of a rank")
def spreads_the_shared_expert(budget, self, recipe, spread, card):
    """Counts the shared expert as a routed one and cuts it by EP, though every rank runs all of it."""
    moe = replace(recipe.moe, shared_hidden=0, expert_hidden=recipe.moe.expert_hidden + recipe.moe.shared_hidden)
    return budget(self, replace(recipe, moe=moe), spread, card)


@broken(Reference, "budget", "MEM-02d[own-axis-full]: weights go from")
def shards_the_optimizer_alone(budget, self, recipe, spread, card):
    """Plans FSDP2 as a distributed optimizer: weights and gradients whole on every rank."""
    return budget(self, recipe, replace(spread, sharding="optimizer" if spread.sharding == "full" else "none"), card)


@broken(Reference, "budget", "MEM-02d[borrowed-optimizer]: weights go from")
def shards_everything(budget, self, recipe, spread, card):
    """Plans a distributed optimizer as FSDP2: weights that stay whole are divided."""
    return budget(self, recipe, replace(spread, sharding="full"), card)


@broken(Reference, "budget", "MEM-02d[own-axis-none]: activations go from")
def shards_activations(budget, self, recipe, spread, card):
    """Divides by the world what does not fit one card, as if cards pooled their memory."""

    def pooled(line):
        return replace(line, bytes=line.bytes // spread.world) if line.part == "activations" else line

    return _of_lines(budget(self, recipe, spread, card), pooled)


@broken(Reference, "budget", "MEM-02e[bf16-whole]: bytes of training state a bf16 parameter, sharding none, is 2.0")
def counts_weights_alone(budget, self, recipe, spread, card):
    """Budgets for loading only: two bytes per parameter, without gradients and optimizer state."""

    def loaded(line):
        return replace(line, bytes=0) if line.part in {"gradients", "optimizer"} else line

    return _of_lines(budget(self, recipe, spread, card), loaded)


@broken(Reference, "budget", "MEM-02e[fp32-whole]: sharding none, is 20.0, expected 16.0")
def keeps_a_master_of_float32(budget, self, recipe, spread, card):
    """Over-correction: master copies are budgeted for parameters that are already float32."""

    def mastered(line):
        whole = line.part == "optimizer" and recipe.dtype == "fp32"
        return replace(line, bytes=line.bytes * 12 // 8) if whole else line

    return _of_lines(budget(self, recipe, spread, card), mastered)


@broken(Reference, "budget", "MEM-02f[micro-batch-4]: bytes of activations of 4 sequences is")
def forgets_the_micro_batch(budget, self, recipe, spread, card):
    """Uses a formula for one sequence with four."""
    return budget(self, replace(recipe, batch=replace(recipe.batch, micro=1)), spread, card)


@broken(Reference, "budget", "MEM-02f[micro-batch-1]: bytes of activations of 1 sequences is")
def keeps_the_residual_alone(budget, self, recipe, spread, card):
    """Counts one tensor per layer, 2 bytes per element: right only with full recomputation, which the recipe does not
    use.
    """

    def residual(line):
        return replace(line, bytes=line.bytes // 17) if line.part == "activations" else line

    return _of_lines(budget(self, recipe, spread, card), residual)


@broken(Reference, "budget", "MEM-02g[as-many-as-stages]: activations of stage 0 of 4 with 4 micro batches")
def divides_activations_by_stages(budget, self, recipe, spread, card):
    """Divides activations by the stages, as the layers are divided, and forgets the passes in flight."""

    def one_pass(line):
        return replace(line, bytes=line.bytes // spread.degrees.pp) if line.part == "activations" else line

    return _of_lines(budget(self, recipe, spread, card), one_pass)


@broken(Reference, "budget", "MEM-02g[two-for-four-stages]: activations of stage 0 of 4 with 2 micro batches")
def fills_the_pipeline_always(budget, self, recipe, spread, card):
    """Over-correction: always counts pp passes in flight, even where a step has fewer microbatches than stages."""
    batch = replace(recipe.batch, total=max(recipe.batch.total, recipe.batch.micro * spread.degrees.pp))
    return budget(self, replace(recipe, batch=batch), spread, card)


@broken(Reference, "budget", "MEM-02g[two-chunks-a-stage]: activations of stage 0 of 2 with 2 micro batches")
def counts_microbatches_for_chunks(budget, self, recipe, spread, card):
    """Holds as many passes of a chunk as the step has microbatches, though each passes through every chunk."""

    def of_one_chunk(line):
        return replace(line, bytes=line.bytes // 2) if line.part == "activations" and "|" in recipe.pattern else line

    return _of_lines(budget(self, recipe, spread, card), of_one_chunk)


@broken(Reference, "budget", "MEM-02h[ep4-brings-its-own]: bytes of routing buffers")
def shares_one_batch_everywhere(budget, self, recipe, spread, card):
    """Divides the buffers by ep in the borrowed layout, where each rank of the EP group brings its own tokens."""

    def divided(line):
        borrowed = spread.layout == "borrowed" and line.part == "routing"
        return replace(line, bytes=line.bytes // spread.degrees.ep) if borrowed else line

    return _of_lines(budget(self, recipe, spread, card), divided)


@broken(Reference, "budget", "MEM-02h[ep1]: bytes of routing buffers")
def counts_each_token_once(budget, self, recipe, spread, card):
    """Buffers hold each token once, though it goes to top-k experts."""
    return budget(self, replace(recipe, moe=replace(recipe.moe, top_k=1)), spread, card)


@broken(Reference, "budget", "MEM-02n[micro-batch-4]: bytes of activations of 4 recomputed sequences")
def recomputes_and_plans_as_before(budget, self, recipe, spread, card):
    """Budgets a recomputed model as if it kept everything: a lane that fits is refused."""
    return budget(self, replace(recipe, recompute="none"), spread, card)


@broken(Reference, "budget", "MEM-02n[micro-batch-1]: bytes of activations of 1 recomputed sequences")
def recomputes_for_nothing(former, self, recipe, spread, card):
    """Counts no activations at all under recomputation, and is out of memory at the first backward pass."""
    budget = former(self, recipe, spread, card)
    stages = tuple(
        replace(stage, lines=tuple(line for line in stage.lines if line.what != "inputs of blocks"))
        for stage in budget.stages
    )
    return replace(budget, stages=stages)
