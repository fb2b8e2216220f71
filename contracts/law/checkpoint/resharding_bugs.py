"""Runs of several ranks that save what only one of them holds, or load what another one held."""

import random
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem
from torch.distributed.tensor import DTensor

from contracts.law._bugs.numeric import (
    GENERATORS,
    Manifest,
    ParallelTrainer,
    PipelineTrainer,
    ShardedOptimizer,
    ShardReader,
    broken,
    derived,
    local_part,
    mutant,
    rng_state,
    with_attributes,
)
from contracts.law.checkpoint.data_position_bugs import CountsAnEpochTwice, CountsEpochs
from contracts.stacks.reference.training.trainer import LAYOUT

Position = Mapping[str, int]


with_attributes(
    "SavesTheFirstGenerators",
    "The generators have the same name on all ranks: one rank's are saved, and all ranks resume with them.",
    "CKPT-01e[fsdp2]: rng: the state",
    owner=ParallelTrainer,
    bugs=("RSM-24",),
    own_generators=f"{GENERATORS}0/",
)


@broken(ParallelTrainer, "own_generators", "CKPT-01e[tp2-sp-muon]: rng: the state", bugs=("RSM-24",))
def saves_them_by_data_rank(own_generators, self):
    """Generators are saved per data-parallel rank: tensor-parallel ranks share a file, and the last write stays."""
    return f"{GENERATORS}{self.mesh.place('rows').index(self.mesh.rank)}/"


@broken(ParallelTrainer, "restore_generators", "CKPT-01e[ep2]: after 1 loads, rank 1: step 3: rng: the state")
def restores_the_first(restore_generators, self, states):
    """Only rank 0 restores its generators."""
    if self.mesh.rank == 0:
        restore_generators(self, states)


@broken(ParallelTrainer, "load", "CKPT-01e[dp2-muon]: after 1 loads, rank 0: step 2: losses is")
def never_gathers_what_was_loaded(load, self, state, position):
    """Each rank loads the matrices that it updates, and nothing hands them to the others (Megatron-LM #6920)."""
    dealt = [each for each in self.optimizer.members if self.optimizer.rule(each) == "muon"]
    others = [
        each.parameter
        for number, each in enumerate(dealt)
        if number % dist.get_world_size() != dist.get_rank() and not isinstance(each.parameter, DTensor)
    ]
    before = [each.detach().clone() for each in others]
    load(self, state, position)
    with torch.no_grad():
        for parameter, value in zip(others, before, strict=True):
            parameter.copy_(value)


def _plain(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace sharded experts by the local tensors of this rank."""
    return {
        name: each.to_local() if ".experts." in name and isinstance(each, DTensor) else each
        for name, each in held.items()
    }


def _again(held: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `_plain`."""
    found = dict(held)
    for name, each in held.items():
        whole = like.get(name.rpartition("/")[0] if name.rpartition("/")[0] in like else name)
        if ".experts." in name and isinstance(whole, DTensor) and each.dim() and not isinstance(each, DTensor):
            found[name] = DTensor.from_local(
                each, whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride()
            )
    return found


@derived("CKPT-01e[ep2]: after 1 loads, rank 0: step 3: losses is", bugs=("RSM-48",))
class SavesItsShards(ParallelTrainer):
    """Experts become local tensors before the save: every rank has a tensor of that name, and one is written."""

    def state(self) -> dict[str, Tensor]:
        held = super().state()
        return held | _plain({name: each for name, each in held.items() if name.startswith("weights/")})

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        like = {f"weights/{name}": each for name, each in self.model.named_parameters()}
        super().load(_again(state, like), position)


@derived(
    "CKPT-01e[ep2]: optimizer: the state layers.1.mixer.experts.w1/exp_avg",
    "CKPT-01h[ep2]: optimizer: the state layers.1.mixer.experts.w1/exp_avg",
    bugs=("RSM-48",),
)
class SavesTheMomentsOfItsShards(ShardedOptimizer):
    """Expert weights are saved from every rank, but their moments only from the first rank that holds some."""

    def state(self) -> dict[str, Tensor]:
        return _plain(super().state())

    def blank(self) -> dict[str, Tensor]:
        return _plain(super().blank())

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(_again(state, {member.name: member.parameter for member in self.members}))


@broken(
    ShardedOptimizer,
    "load",
    "CKPT-02a[tp2-sp]: optimizer: the state layers.",
    "CKPT-02h[fsdp2]: optimizer: the state layers.",
    bugs=("RSM-10",),
)
def loads_by_order(load, self, state):
    """The optimizer's state is saved in the order of the parameter groups and loaded in the order of the names."""
    shuffled = dict(state)
    for entry in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        by_shape = {}
        for name, each in state.items():
            if name.endswith(f"/{entry}"):
                by_shape.setdefault(each.shape, []).append(name)
        for names in by_shape.values():
            shuffled |= {name: state[other] for name, other in zip(names, sorted(names), strict=True)}
    load(self, shuffled)


@broken(ShardReader, "place", "CKPT-02a[ep2]: saved on 2-ranks-ep2, loaded on one-rank", bugs=("RSM-60",))
def finds_its_shard_by_rank(place, self, content, item, planner):
    """Each rank opens the file with its own number, as if the same layout had saved."""
    piece = self.pieces[item.storage_index]
    own = f"shard-{dist.get_rank():05d}"
    for offsets, other in [(each.offsets, each) for each in self.manifest.tensors[item.storage_index.fqn].pieces]:
        if other.file.startswith(own) and other.sizes == piece.sizes and other is not piece:
            content = self.content_of(other.file)
            item = ReadItem(**vars(item) | {"storage_index": MetadataIndex(item.storage_index.fqn, offsets)})
    place(self, content, item, planner)


@derived("CKPT-02a[tp2-sp-fsdp2]: saved on 4-ranks-tp2-sp-fsdp, loaded on", bugs=("DSP-04",))
class OrdersShardsAsText(ShardReader):
    """Shards are joined in the text order of their names: the one from row 12 comes before the one from row 6."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        for name, held in manifest.tensors.items():
            alike = [piece for piece in held.pieces if piece.sizes == held.pieces[0].sizes]
            as_text = sorted(alike, key=lambda piece: [str(offset) for offset in piece.offsets])
            for piece, other in zip(sorted(alike, key=lambda piece: piece.offsets), as_text, strict=True):
                self.pieces[MetadataIndex(name, piece.offsets)] = other

    def place(self, content: bytes, item: ReadItem, planner: LoadPlanner) -> None:
        super().place(self.content_of(self.pieces[item.storage_index].file), item, planner)


@broken(
    ParallelTrainer,
    "put",
    "CKPT-02a[one-rank]: rank 1: buffers: the state layers.1.mixer.router.bias differs",
    bugs=("EXB-04",),
)
def loads_buffers_on_the_first(put, self, values, into, what):
    """Only rank 0 loads the buffers and nobody broadcasts them, so each rank's router selects other experts."""
    if what != "buffers" or self.mesh.rank == 0:
        put(self, values, into, what)


@broken(ParallelTrainer, "load", "CKPT-02a[one-rank]: the run resumed after step 0, expected 2", bugs=("RSM-03",))
def counts_steps_of_these_ranks(load, self, state, position):
    """The step is saved as per-rank state; other ranks find none and begin at 0."""
    load(self, state, position)
    if position.get("layout.world") != self.execution.world:
        self.number = 0


@derived("CKPT-02b[two-to-two]: step 2: samples is", bugs=("RSM-60",))
class CountsSequencesByRank(ParallelTrainer):
    """The place in the data is counted per rank: with more ranks the same number means another sequence."""

    def position(self) -> dict[str, int]:
        return super().position() | {"consumed": self.consumed // len(self.mesh.place("rows"))}

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        self.consumed *= len(self.mesh.place("rows"))


@broken(
    ParallelTrainer,
    "resume",
    "CKPT-02a[one-rank]: optimizer: the state embedding.weight/exp_avg differs",
    bugs=("RSM-66",),
)
def leaves_moments_behind(resume, self, folder):
    """Moments that do not fit the new layout are left out: the weights continue without their momentum."""
    resume(self, folder)
    if self.kept(folder).opened().position.get("layout.world") != self.execution.world:
        self.optimizer.load({name: torch.zeros_like(each) for name, each in self.optimizer.state().items()})


@broken(ParallelTrainer, "resume", "CKPT-02c[one-to-two]: 2 ranks have 1 states of the generator", bugs=("RSM-23",))
def takes_the_generators_of_others(resume, self, folder):
    """Each rank loads the generators of its number modulo the old world size."""
    resume(self, folder)
    position = self.kept(folder).opened().position
    lender = self.mesh.rank % position.get("layout.world", 1)
    torch.manual_seed(lender)
    rng_state.seed_rank_stream(self.recipe.seed, self.number, str(lender))


@broken(
    ParallelTrainer,
    "resume",
    "CKPT-02c[one-to-two]: draws the same numbers from",
    "CKPT-02c[tp-to-dp]: draws the same numbers from",
    "CKPT-02c[dp-to-tp]: draws the same numbers from",
)
def begins_generators_as_at_the_first_step(resume, self, folder):
    """After a change of layout each rank is seeded as in a run that begins, whatever step it is."""
    resume(self, folder)
    rng_state.seed_rank_stream(self.recipe.seed, 0, self.stream())


@broken(rng_state, "seed_rank_stream", "CKPT-02c[one-to-two]: draws the same numbers from python")
def leaves_the_generator_of_python(seed_rank_stream, seed, step, whose):
    """After a change of layout torch's and NumPy's generators begin anew, and Python's goes on from its old state."""
    held = random.getstate()
    seed_rank_stream(seed, step, whose)
    random.setstate(held)


@broken(ParallelTrainer, "layout", "CKPT-02c[tp-without-sp-to-dp]: 2 ranks have 1 states of the generator")
def knows_a_layout_by_its_ranks(layout, self):
    """As many ranks as before are taken for the same layout: data-parallel ranks get the equal generators of TP."""
    return {name: each for name, each in layout(self).items() if name in ("world", "fsdp", "replicas")}


@broken(ParallelTrainer, "resume", "CKPT-02c[tp-to-dp]: 2 ranks have 1 states of the generator torch")
def seeds_all_alike(resume, self, folder):
    """Over-correction: after a change of layout, every rank is seeded with the run's seed."""
    resume(self, folder)
    torch.manual_seed(self.recipe.seed)


@mutant(of="CKPT-01e", case="fsdp2-delayed-fp8", says="buffers: the state layers.", bugs=("RSM-24",))
@broken(
    ParallelTrainer,
    "state",
    "CKPT-02f[to-one-rank]: buffers differ from rank to rank, and one-rank loaded them, such as",
)
def saves_one_scale(state, self):
    """Per-rank scales are saved like any buffer: one rank's are written, and every rank loads them."""
    return {name.removeprefix(self.own_names): each for name, each in state(self).items()}


class BySequences(PipelineTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        before, here = position.get("layout.pp", 1), self.execution.degrees.pp
        super().load(state, {**position, "consumed": position["consumed"] * here // before})


with_attributes(
    "CountsSequencesByStages",
    "The place in the data is counted per rank, while a change in the number of stages changes how many ranks read.",
    "CKPT-02b[four-stages-to-two-to-two-twice]: samples is",
    owner=BySequences,
    bugs=("RSM-60",),
)


@broken(PipelineTrainer, "own_generators", "CKPT-01e[pp2-tp2-sp]: rng: the state", bugs=("RSM-24",))
def saves_generators_by_stage(own_generators, self):
    """Generators are saved per pipeline stage: ranks that share a stage resume with the numbers of one of them."""
    return f"{GENERATORS}{self.mesh.place('pp').index(self.mesh.rank)}/"


@derived("CKPT-01i[fsdp2]: on 2-ranks-fsdp, from step 3 on, rank 0: the samples are")
class CountsEpochsAnewOnRanks(CountsEpochs, ParallelTrainer):
    """The sampler of a rank is made anew by a load, and takes the epoch that it begins in for the first."""


@broken(ParallelTrainer, "position", "CKPT-01i[one-to-two-to-two-of-one-row]: from step 6 on, rank 0: the samples are")
def saves_the_offset_in_its_epoch(position, self):
    """Ranks save how far they are in their epoch, and not in which: the first load, of one rank's save, is right."""
    return position(self) | {"consumed": self.consumed % len(self.corpus)}


@derived("CKPT-01i[fsdp2-where-epochs-end]: from step 3 on, rank 0: the samples are")
class LeavesAnEpochOutOnRanks(CountsAnEpochTwice, ParallelTrainer):
    """Ranks that resume where an epoch ends begin the one after the next."""


class _LoadsMomentsOfLayersAlone(ParallelTrainer):
    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        super().load(state, position)
        tied = () if self.recipe.untied_embeddings else ("embedding.",)
        for name, each in self.optimizer.state().items():
            if name.startswith(("mtp.", *tied)) or ".streams." in name:
                local_part(each).zero_()


with_attributes(
    "LoadsMomentsOfLayersAlone",
    "On ranks the optimizer's state is loaded by lists of the layers: heads, streams and a tied embedding are in none.",
    "CKPT-01e[fsdp2-tied]: after 1 loads, rank 0: step 3: losses is",
    "CKPT-01e[tp2-sp-every-kind]: the state layers.0.streams.alpha/exp_avg differs",
    "CKPT-01e[fsdp2-every-kind]: the state layers.0.streams.alpha/exp_avg differs",
    owner=_LoadsMomentsOfLayersAlone,
)


def _under_layout(position: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(LAYOUT): each for name, each in position.items() if name.startswith(LAYOUT)}


@broken(
    _LoadsMomentsOfLayersAlone,
    "load",
    "CKPT-02a[pp2-tied]: rank 0: optimizer: the state embedding.weight/exp_avg",
    "CKPT-02a[tp2-sp-custom-mixers]: optimizer: the state layers.0.streams",
    "CKPT-02a[one-rank-every-kind]: optimizer: the state layers.0.streams",
)
def places_moments_of_layers_alone(load, self, state, position):
    """On its own layout a checkpoint is loaded whole. For another one the optimizer's state is placed by lists of the
    layers: prediction heads, streams and an embedding that is the head as well begin anew (Megatron-LM #7162)."""
    if _under_layout(position) == self.layout():
        ParallelTrainer.load(self, state, position)
    else:
        load(self, state, position)


@derived(
    "CKPT-02a[eager-to-compiled]: _orig_mod.1.mixer.router.bias = 'float64 [12]': is missing",
    "CKPT-02a[compiled-to-eager]: is missing from the checkpoint of step 2",
)
class SavesNamesOfTheCompiler(ParallelTrainer):
    """A compiled run saves and loads the names of its compiled modules: only another compiled run finds them."""

    def state(self) -> dict[str, Tensor]:
        held, wrapped = super().state(), self.execution.compile != "none"
        return {name.replace("layers.", "layers._orig_mod.") if wrapped else name: each for name, each in held.items()}

    def load(self, state: Mapping[str, Tensor], position: Mapping[str, int]) -> None:
        super().load({name.replace("layers._orig_mod.", "layers."): each for name, each in state.items()}, position)
