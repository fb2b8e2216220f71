"""Scripts whose ranks drift apart, read the same rows, or issue different collectives."""

from contracts.contract import mutant
from contracts.law._bugs.broken import with_attributes
from contracts.stacks.reference.stack import Reference

WRAPPED = "    model = DistributedDataParallel(net, broadcast_buffers=False)"


with_attributes(
    "InitialisesALayerOnEachRank",
    "A layer is initialised again after wrapping, on each rank by its own seed.",
    "OBS-02[one-run]: step 1: the weight down.weight has other bits on rank 1 than on rank 0",
    edits={WRAPPED: f"{WRAPPED}\n    torch.manual_seed(rank)\n    net.down.reset_parameters()"},
)

with_attributes(
    "NeverReduces",
    "Every microbatch is under `no_sync`, so that no gradient is averaged over ranks.",
    "OBS-02[one-run]: step 1: the gradient of embed.weight has other bits on rank 1 than on rank 0",
    edits={"if micro == 0 else": "if True else"},
)

with_attributes(
    "ReducesTheRestInTheOptimizer",
    "The optimizer adds up the gradients itself, and leaves the first one out.",
    "OBS-02[one-run]: step 1: the gradient of embed.weight has other bits on rank 1 than on rank 0",
    edits={
        "if micro == 0 else": "if True else",
        "        optimizer.step()": """        def reduced(optimizer, *_):
            for each in optimizer.param_groups[0]["params"][1:]:
                dist.all_reduce(each.grad.div_(world))

        hook = optimizer.register_step_pre_hook(reduced)
        optimizer.step()
        hook.remove()""",
    },
)

with_attributes(
    "GivesOneRankAnotherRate",
    "The learning rate is scaled by something that ranks do not agree on.",
    "OBS-02[one-run]: step 1: the updated weight embed.weight has other bits on rank 1",
    edits={"lr=1e-3": "lr=1e-3 * (1 + rank)"},
)

with_attributes(
    "CentresEachRanksRows",
    "The mean that centres the embeddings is measured after wrapping, by each rank on rows of its own.",
    "OBS-02[one-run]: step 1: the buffer mean has other bits on rank 1 than on rank 0",
    edits={
        "        self.moe = Experts()": "        self.moe = Experts()\n"
        '        self.register_buffer("mean", torch.zeros(16))',
        "x = self.embed(rows[:, :-1])": "x = self.embed(rows[:, :-1]) - self.mean",
        "    torch.manual_seed(100": "    net.mean.copy_(net.embed.weight.detach()[rank::world].mean(0))\n"
        "    torch.manual_seed(100",
    },
)

with_attributes(
    "ReadsTheSameRows",
    "The sampler does not know its rank.",
    "OBS-06[one-run]: step 1: ranks 0 and 1 consume the same 4 rows",
    edits={"[rank::world]": "[::world]"},
)

with_attributes(
    "FetchesOnceForTheStep",
    "The batch is fetched outside of the loop over microbatches.",
    "OBS-06[one-run]: step 1: microbatches 1 and 2 of rank 0 are the same 4 rows",
    edits={
        "default=0.1": "default=0.0",
        "            rows = torch.randint": "            rows = rows if micro else torch.randint",
    },
)

with_attributes(
    "ShufflesOnEachRank",
    "Each rank shuffles the whole dataset by a seed of its own, and nobody gives it a part.",
    "OBS-06[one-run]: rows of rank 1 were consumed before in this epoch",
    edits={
        "rows = torch.randint(97, (8, 9), generator=data)[rank::world]": "rows = next(batches)",
        "    for step in range(done": """    texts = torch.randint(97, (20, 9), generator=data)
    order = torch.utils.data.RandomSampler(texts, generator=torch.Generator().manual_seed(rank))
    batches = iter(torch.utils.data.DataLoader(texts, batch_size=4, sampler=order))
    for step in range(done""",
    },
)

SplitsOnEachRank = with_attributes(
    "SplitsOnEachRank",
    "Each rank draws the rows to train on by a seed of its own, and a sampler divides them between the ranks.",
    "OBS-06[one-run]: ranks 0 and 1 divide a subset of 32 rows between them, and each has its own",
    edits={
        "rows = torch.randint(97, (8, 9), generator=data)[rank::world]": "rows = next(batches)",
        "    for step in range(done": """    texts = torch.randint(97, (40, 9), generator=data)
    part, _ = torch.utils.data.random_split(texts, [32, 8], torch.Generator().manual_seed(rank))
    sampler = torch.utils.data.DistributedSampler(part, world, rank)
    batches = iter(torch.utils.data.DataLoader(part, batch_size=4, sampler=sampler))
    for step in range(done""",
    },
)


@mutant(of="OBS-06", case="one-run", says="step 1: ranks 0 and 1 share their layers, and consume other rows")
class ReadsByTheRankOfTheWorld(Reference):
    """Two ranks that hold halves of the layers read rows as if they were data-parallel."""

    edits = {
        WRAPPED: """    from torch.distributed.tensor import parallel
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    halves = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(net, mesh, halves)""",
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n": "",
    }


with_attributes(
    "ReadsByTheRankOfAMeshWithoutNames",
    "The same, and the mesh does not say what its only axis is for.",
    "OBS-06[one-run]: step 1: ranks 0 and 1 share their layers, and consume other rows",
    edits={each: new.replace(', mesh_dim_names=("tp",)', "") for each, new in ReadsByTheRankOfTheWorld.edits.items()},
)

with_attributes(
    "ReadsTheSameRowsWithoutAWrapper",
    "The script adds gradients up itself, and its sampler does not know of ranks.",
    "OBS-06[one-run]: step 1: ranks 0 and 1 consume the same 8 rows",
    edits={
        WRAPPED: "    model = net",
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        "[rank::world]": "",
        "        net.moe.balance()": """        for each in model.parameters():
            dist.all_reduce(each.grad)
        net.moe.balance()""",
    },
)

with_attributes(
    "ReadsTheSameRowsUnderHSDP",
    "FSDP with an axis of replicas, which public trainers make for one replica too; all ranks read the first rows.",
    "OBS-06[one-run]: step 1: ranks 0 and 1 consume the same 4 rows",
    edits={
        WRAPPED: """    from torch.distributed.fsdp import fully_shard
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, world), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(net, mesh=mesh)""",
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        "[rank::world]": "[::world]",
    },
)

with_attributes(
    "BeginsTheEpochAgain",
    "Nobody skips after a resume what the epoch has given already.",
    "OBS-06[resumed]: step 1: 16 of 16 rows were consumed before the resume",
    edits={'        data.set_state(kept["data"])\n': ""},
)

with_attributes(
    "ResumesInTheNextEpoch",
    "The order is drawn by the number of the epoch, which a resume counts as over.",
    "OBS-06[resumed]: step 1: 16 of 16 rows that the whole run consumes there are lost",
    edits={'data.set_state(kept["data"])': "data.manual_seed(1)"},
)

with_attributes(
    "ReducesByAnotherOperation",
    "One rank takes the maximum where the other one takes the sum.",
    "OBS-10[one-run]: is all_reduce(sum) 1 float32 on rank 0 and all_reduce(max) 1 float32 on rank 1",
    edits={"op=dist.ReduceOp.SUM": "op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM"},
)

with_attributes(
    "SeedsEveryRankAlike",
    "One seed for all ranks, so that dropout drops the same units everywhere.",
    "OBS-12[one-run]: step 1: the forward passes of ranks 0 and 1 draw the same random numbers",
    edits={"manual_seed(100 + rank)": "manual_seed(100)"},
)

with_attributes(
    "AddsUpANormInBfloat16",
    "FSDP is asked for float32, and the gradient of a norm is added up by hand in bfloat16.",
    "OBS-20[one-run]: adds up 16 numbers of bfloat16 over ranks 0-1, as many as",
    edits={
        WRAPPED: """    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    model = fully_shard(net, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))""",
        "model.no_sync() if micro == 0 else contextlib.nullcontext()": "contextlib.nullcontext()",
        "        net.moe.balance()": """        whole = net.norm.weight.grad.full_tensor()
        dist.all_reduce(whole.bfloat16())
        net.moe.balance()""",
    },
)
