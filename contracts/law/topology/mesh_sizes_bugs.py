"""Stacks that compute the mesh wrongly in one place: sizes, data parallelism, idle ranks."""

from dataclasses import replace

from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import refuse
from contracts.stacks.reference.stack import Reference


@broken(Reference, "topology", "TOPO-01[own-axis-pp3-tp2-ep4]: the world has 72")
def counts_replicas_over_ep(topology, self, degrees, world, layout):
    """Reports ep · dp as the size of the dp axis, as borrowed stacks do, on a mesh where EP has its own axis."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, sizes={**answer.sizes, "dp": answer.dp * degrees.ep})


@broken(
    Reference,
    "topology",
    "TOPO-01[borrowed-tp2-ep4-etp1-on-4]: a legal input was refused",
    "TOPO-05c[drawn-000-049]: is legal and was refused",
    "TOPO-05g[drawn-000-049]: is legal and was refused",
    bugs=("PG-14",),
)
def multiplies_ep_into_the_model(topology, self, degrees, world, layout):
    """The validator requires tp · pp · ep to divide the world, although EP overlaps data parallelism."""
    if world % (degrees.tp * degrees.pp * degrees.ep):
        raise refuse("world", world, "must be a multiple of tp * pp * ep", "change a degree")
    return topology(self, degrees, world, layout)


@broken(Reference, "topology", "TOPO-01[borrowed-cp4-tp2-ep8-etp1-on-8]: ep has size 4, asked for 8")
def shrinks_ep_to_dp(topology, self, degrees, world, layout):
    """Over-correction: silently shrinks EP to dp · cp, although EP may borrow TP ranks too."""
    room = world // (degrees.pp * degrees.tp)
    return topology(self, replace(degrees, ep=min(degrees.ep, room)), world, layout)


@broken(Reference, "topology", "TOPO-01a[borrowed-dense-alone]: the refusal does not name the world (8)")
def refuses_without_numbers(topology, self, degrees, world, layout):
    """The refusal says which rule was broken but not by which numbers."""
    try:
        return topology(self, degrees, world, layout)
    except ValueError:
        raise refuse("world", "as launched", "does not fit the axes", "change a degree") from None


@broken(Reference, "topology", "TOPO-01b[pp2-tp3-ep5-on-8]: leaves out [10]")
def stops_at_the_first_refusal(topology, self, degrees, world, layout):
    """Raises on the first relation that fails: the second one costs another launch."""
    dense = degrees.pp * degrees.cp * degrees.tp
    if world % dense:
        raise refuse("world", world, f"must be a multiple of pp * cp * tp ({dense})", "change a degree")
    return topology(self, degrees, world, layout)


@broken(
    Reference,
    "topology",
    "TOPO-02[pp2-tp2-on-4]: dp is 2, expected 1",
    "TOPO-11[own-axis-512]: dp is 16, expected 4",
    bugs=("DPS-01",),
)
def forgets_pipeline(topology, self, degrees, world, layout):
    """The optimizer's DP size is not divided by pp: the H200 bring-up bug. Nobody had run a pipeline on eight ranks."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, dp=answer.dp * degrees.pp)


@broken(Reference, "topology", "TOPO-02[pp2-tp2-on-8]: dp is 1, expected 2")
def divides_by_pipeline_twice(topology, self, degrees, world, layout):
    """Over-correction: pp is threaded into the optimizer's routing, which received a DP size without it already."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, dp=max(1, answer.dp // degrees.pp))


@broken(Reference, "topology", "TOPO-02[tp2-ep2-on-8]: dp is 4, expected 2")
def forgets_experts(topology, self, degrees, world, layout):
    """Counts EP ranks as data-parallel ranks, though on its own axis they share one batch."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, dp=answer.dp * degrees.ep)


@broken(Reference, "topology", "TOPO-02a[pp2-tp2-ep4-on-64]: dp is 4, expected 16")
def divides_by_borrowed_experts(topology, self, degrees, world, layout):
    """The rule of the own-axis layout, world / (pp · tp · ep), used where EP is borrowed."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, dp=world // (degrees.pp * degrees.tp * degrees.ep))


@broken(Reference, "topology", "TOPO-02a[pp3-cp2-tp2-ep4-on-96]: dp is 16, expected 8")
def counts_context_as_data(topology, self, degrees, world, layout):
    """Counts CP ranks as readers of other data: the loader deals every sequence to cp ranks as cp sequences."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, dp=answer.dp * degrees.cp)


@broken(
    Reference, "topology", "TOPO-02b[pp2-tp2-ep4-follows-tp-on-64]: expert dp is 8, expected 4",
    "TOPO-03a[borrowed-pp2-tp2-ep4]: with etp 0 an ep group is [[0, 1, 2, 3]]", bugs=("EPD-04",),
)  # fmt: skip
def unset_etp_means_one(topology, self, degrees, world, layout):
    """An unset expert TP degree means 1 to the mesh and "follow TP" to the recipe that left it unset."""
    return topology(self, replace(degrees, etp=degrees.etp or 1), world, layout)


@broken(Reference, "topology", "TOPO-02b[pp3-cp2-tp2-ep4-on-96]: expert dp is 2, expected 4")
def gives_experts_context(topology, self, degrees, world, layout):
    """Divides the expert replicas by cp, though CP ranks are folded into EP and expert DP."""
    answer = topology(self, degrees, world, layout)
    return replace(answer, expert_dp=max(1, answer.expert_dp // degrees.cp))


@broken(Reference, "topology", "TOPO-02b[pp2-tp2-ep4-etp1-on-64]: expert dp is 4, expected 8")
def experts_always_follow_tp(topology, self, degrees, world, layout):
    """Over-correction: experts are split over TP even where the recipe says etp 1."""
    return topology(self, replace(degrees, etp=degrees.tp), world, layout)


@broken(Reference, "divide", "TOPO-10[one-sequence-a-rank]: a legal input was refused")
def wants_accumulation(divide, self, recipe, degrees, world, layout):
    """Over-correction: demands more than one microbatch per step, so one sequence per rank counts as idle."""
    dp = divide(self, recipe, degrees, world, layout)
    if recipe.batch.total <= recipe.batch.micro * dp:
        raise refuse("batch.total", recipe.batch.total, f"must exceed batch.micro * dp ({dp})", "add sequences")
    return dp


@broken(Reference, "divide", "TOPO-10[borrowed-cp4-ep8]: divide gives dp 16, expected 4")
def deals_sequences_to_context(divide, self, recipe, degrees, world, layout):
    """Gives CP ranks sequences of their own when it divides the batch."""
    return divide(self, recipe, degrees, world, layout) * degrees.cp


@broken(Reference, "divide", "TOPO-10a[sequence-4095-over-tp2]: expected a refusal", bugs=("CMP-03",))
def leaves_the_last_shard_short(divide, self, recipe, degrees, world, layout):
    """Rounds a sequence up to its shards: the last rank holds fewer tokens, or none, and compiles another graph."""
    shards = degrees.cp * degrees.tp
    rounded = -(-recipe.seq_length // shards) * shards
    return divide(self, replace(recipe, seq_length=rounded), degrees, world, layout)


@broken(Reference, "divide", "TOPO-10a[batch-smaller-than-dp]: expected a refusal")
def deals_short_batches(divide, self, recipe, degrees, world, layout):
    """Checks the micro batch but never the global one: some ranks get no sequence of the step."""
    batch = replace(recipe.batch, total=recipe.batch.micro * world)
    return divide(self, replace(recipe, batch=batch), degrees, world, layout)


@broken(Reference, "divide", "TOPO-10a[experts-12-over-ep16]: expected a refusal")
def leaves_ranks_without_experts(divide, self, recipe, degrees, world, layout):
    """Rounds the experts up to the EP degree: the last ranks of every EP group hold none."""
    moe = recipe.moe
    if moe is not None:
        moe = replace(moe, experts=-(-moe.experts // degrees.ep) * degrees.ep)
    return divide(self, replace(recipe, moe=moe), degrees, world, layout)


with_attributes(
    "DeclaresTheFirstRefusal",
    "Declares that it names the first misfit, and names both.",
    "TOPO-01b[pp2-tp3-ep5-on-8]: names 2 of 6 and 10, expected one",
    conventions={"misfits": "first"},
)
