"""The memory that a plan needs on one rank of each pipeline stage, part by part, with the formulas written out.

Bytes per parameter follow Megatron-Core's table of the distributed optimizer, which shards optimizer state over d
ranks: bf16 18, or 6 + 12/d (weights 2, float32 gradients 4, master and two Adam moments 12); fp16 20, or 4 + 16/d;
float32 16, or 8 + 8/d. FSDP2 shards weights, gradients and optimizer state. Muon keeps one moment of a matrix, 4 bytes
less.

Activations: 34 bytes per token, hidden element and layer at 16 bits (Korthikanti et al., arXiv 2205.05198, with the
attention core recomputed or flash attention); 10 + 24/tp with TP, 34/tp with SP. The source's example is B 1,
T 4096, D 1536, 52 layers: 11.12 GB. Routing: the router's float32 logits, and token buffers into and out of the local
experts at capacity factor 1.25.

With full recomputation every layer keeps its input (2 bytes per token and element at 16 bits; SP shards it), and one
layer at a time has its 34 bytes and its routing.

Assumptions: each letter of the pattern counts as one layer of 34 bytes, which is more than E, M and R need with fused
kernels (`eager_activations.py` has what layers keep without); FP8 changes matmuls and not stored tensors; a pipeline
runs 1F1B, interleaved if stages are virtual, with equal chunks; 1.5 GB for context, libraries and workspaces.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from contracts.spec import eager_activations, parameters
from contracts.spec import pattern as patterns
from contracts.spec.capacity import PARTS, Budget, Card, Line, Share, Spread, StageBudget
from contracts.spec.cards import positive, word
from contracts.spec.divisibility import refusals_on
from contracts.spec.parameters import Tensors
from contracts.spec.recipe import Dtype, Recipe
from contracts.spec.topology import Grids, Kind, grids

SHARES: tuple[Share, ...] = ("replicated", "tp", "ep")
STATE_BYTES: Mapping[Dtype, tuple[int, int, int]] = {"bf16": (2, 4, 12), "fp16": (2, 2, 16), "fp32": (4, 4, 8)}
"""Bytes per parameter of weight, gradient and optimizer state. fp16 counts float32 main gradients as state."""

MOMENT_BYTES = 4
"""AdamW keeps two float32 moments of a parameter, Muon keeps one of a matrix."""

CAPACITY_FACTOR = (5, 4)  # 1.25 as a fraction, so that C_e is exact
RESERVE_BYTES = 1_500_000_000
BUCKET_PARAMETERS = 40_000_000  # Megatron-Core: max(40e6, 1e6 · dp) parameters a gradient bucket


def capacity_of_an_expert(tokens: int, top_k: int, experts: int) -> int:
    """C_e = ⌈1.25 · tokens · top_k / experts⌉: token slots of one expert. 4096 tokens, 6 of 64 experts: 480."""
    over, under = CAPACITY_FACTOR
    return _ceil(over * tokens * top_k, under * experts)


def budget(recipe: Recipe, spread: Spread, card: Card) -> Budget:
    """The memory of one rank of each stage. The heaviest stage decides.

    Raises:
        Refused: for axes that do not multiply to the world, or a recipe that does not divide over them; all at once.
    """
    both = grids(spread.degrees, spread.world, spread.layout)
    dp = len(both.dense.groups("dp")[0])
    found = refusals_on(recipe, spread.degrees, dp)
    positive("usable_bytes", card.usable_bytes, found)
    if spread.kernels == "eager":
        eager_activations.refusals(recipe, spread, found)
    found.raise_any()
    microbatches = recipe.batch.total // (recipe.batch.micro * dp)
    stages = tuple(
        _stage_budget(_Rank(recipe=recipe, spread=spread, both=both, stage=stage, microbatches=microbatches))
        for stage in range(spread.degrees.pp)
    )
    heaviest = max(range(len(stages)), key=lambda stage: stages[stage].total_bytes)
    total = stages[heaviest].total_bytes
    return Budget(card=card, stages=stages, heaviest=heaviest, total_bytes=total, fit=word(total, card))


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """One rank of a pipeline stage: everything from which its budget lines are computed."""

    recipe: Recipe
    spread: Spread
    both: Grids
    stage: int
    microbatches: int

    @property
    def chunks(self) -> tuple[range, ...]:
        """The layers of each model chunk of the stage, 0-based; several chunks when stages are virtual."""
        segments = patterns.stages(patterns.parse(self.recipe.pattern, self.recipe.depth), self.spread.degrees.pp)
        ends = [sum(map(len, segments[: i + 1])) for i in range(len(segments))]
        owned = range(self.stage, len(segments), self.spread.degrees.pp)
        return tuple(range(ends[i] - len(segments[i]), ends[i]) for i in owned)

    @property
    def letters(self) -> str:
        whole = patterns.parse(self.recipe.pattern, self.recipe.depth).letters
        return "".join(whole[layer] for chunk in self.chunks for layer in chunk)

    @property
    def last(self) -> bool:
        return self.stage == self.spread.degrees.pp - 1

    @property
    def units(self) -> tuple[Tensors, ...]:
        """The units that FSDP gathers: each block, and the other tensors of the first and the last stage."""
        recipe, every = self.recipe, parameters.blocks(self.recipe)
        found = [every[layer] for chunk in self.chunks for layer in chunk]
        if self.stage == 0:
            found.append(parameters.embedding(recipe))
        if self.last:
            found += [parameters.final_norm(recipe), parameters.head(recipe), parameters.mtp(recipe)]
            if self.spread.degrees.pp > 1 and (recipe.mtp is not None or not recipe.untied_embeddings):
                found.append(parameters.embedding(recipe))  # the last stage has its own copy of the embedding
        return tuple(found)

    @property
    def in_flight(self) -> tuple[int, int]:
        """Number of forward passes whose backward pass is pending, and number of chunks of a pass."""
        pp, chunks = self.spread.degrees.pp, len(self.chunks)
        ahead = pp - self.stage - 1
        warmup = ahead if chunks == 1 else 2 * ahead + (chunks - 1) * pp
        return min(warmup + 1, self.microbatches * chunks), chunks

    @property
    def element_bytes(self) -> int:
        return 4 if self.recipe.dtype == "fp32" else 2

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on a rank, before sequence parallelism shards them."""
        return self.recipe.batch.micro * self.recipe.seq_length // self.spread.degrees.cp

    def shards(self, share: Share) -> int:
        """The number of data-parallel ranks over which a tensor of this share can be sharded."""
        kind: Kind = "expert" if share == "ep" else "dense"
        grid = self.both.expert if share == "ep" else self.both.dense
        return prod(size for axis, size in zip(grid.axes, grid.sizes, strict=True) if axis in self.both.reduced[kind])

    def held(self, tensors: Tensors, share: Share, *, fp32: bool | None = None, matrix: bool | None = None) -> int:
        """Parameters of a share on this rank, before data parallelism shards them."""
        degrees = self.spread.degrees
        return sum(
            tensor.on_a_rank(degrees.tp, degrees.ep, degrees.expert_tp)
            for tensor in tensors
            if tensor.share == share and fp32 in (None, tensor.fp32) and matrix in (None, tensor.matrix)
        )


def _stage_budget(rank: _Rank) -> StageBudget:
    lines = (*_state(rank), *_activations(rank), *_routing(rank), *_communication(rank), _reserve())
    tensors = tuple(tensor for unit in rank.units for tensor in unit)
    return StageBudget(
        stage=rank.stage,
        letters=rank.letters,
        parameters={share: rank.held(tensors, share) for share in SHARES},
        lines=tuple(sorted(lines, key=lambda line: PARTS.index(line.part))),
        total_bytes=sum(line.bytes for line in lines),
    )


def _state(rank: _Rank) -> Iterator[Line]:
    """Weights, gradients and optimizer state of each share."""
    weight, gradient, state = STATE_BYTES[rank.recipe.dtype]
    a_parameter = {"weights": (weight, 4), "gradients": (gradient, 4), "optimizer": (state, 8)}
    cut = {"none": (), "optimizer": ("optimizer",), "full": tuple(a_parameter)}[rank.spread.sharding]
    tensors = tuple(tensor for unit in rank.units for tensor in unit)
    muon = rank.recipe.optim.rule == "muon"
    for part in PARTS[:3]:
        for share in SHARES:
            low, full = (rank.held(tensors, share, fp32=fp32) for fp32 in (False, True))
            if not low + full:
                continue
            over = rank.shards(share) if part in cut else 1
            low_bytes, full_bytes = a_parameter[part]
            formula = f"{low:_} * {low_bytes} B" + (f" + {full:_} float32 * {full_bytes} B" if full else "")
            one_moment = rank.held(tensors, share, matrix=True) if part == "optimizer" and muon else 0
            formula += f" - {one_moment:_} under Muon * {MOMENT_BYTES} B" if one_moment else ""
            yield Line(
                part=part,
                share=share,
                what=f"{share} parameters",
                bytes=_ceil(low * low_bytes + full * full_bytes - one_moment * MOMENT_BYTES, over),
                formula=f"({formula}) / {over} data ranks" if over > 1 else formula,
            )


def _activations(rank: _Rank) -> Iterator[Line]:
    recipe, degrees, wide = rank.recipe, rank.spread.degrees, rank.element_bytes
    passes, chunks = rank.in_flight
    layers = len(rank.letters) + (2 * recipe.mtp.depth if recipe.mtp and rank.last else 0)
    layers += rank.letters.count("A") if recipe.parallel_ssm else 0  # a second mixer
    kept = 34 if degrees.sp else 10 * degrees.tp + 24  # over tp
    share: Share = "tp" if degrees.tp > 1 else "replicated"
    held = _in_flight(passes, chunks)
    if recipe.recompute == "full":
        cut = degrees.tp if degrees.sp else 1
        yield Line(
            part="activations",
            share="tp" if cut > 1 else "replicated",
            what="inputs of blocks",
            bytes=_ceil(rank.tokens * recipe.hidden * wide * layers * passes, cut * chunks),
            formula=f"{rank.tokens} tokens * {recipe.hidden} * {wide} B * {layers} layers / {cut} * {held}",
        )
        layers, passes, chunks, held = 1, 1, 1, "being recomputed"
    if rank.spread.kernels == "eager":
        yield from _written_out(rank)
    else:
        yield Line(
            part="activations",
            share=share,
            what="blocks",
            bytes=_ceil(rank.tokens * recipe.hidden * kept * wide * layers * passes, 2 * degrees.tp * chunks),
            formula=f"{rank.tokens} tokens * {recipe.hidden} * {kept}/{degrees.tp} * {wide}/2 B * {layers} layers"
            f" * {held}",
        )
    if recipe.mhc is not None:
        more, cut = recipe.mhc.streams - 1, degrees.tp if degrees.sp else 1
        attention = rank.letters.count("A")
        yield Line(
            part="activations",
            share="tp" if cut > 1 else "replicated",
            what="residual streams",
            bytes=_ceil(rank.tokens * recipe.hidden * wide * more * attention * passes, cut * chunks),
            formula=f"{rank.tokens} tokens * {recipe.hidden} * {wide} B * {more} streams * {attention} A / {cut}"
            f" * {held}",
        )
    if rank.last:
        heads = 1 + (recipe.mtp.depth if recipe.mtp else 0)
        softmax = 12 if rank.spread.kernels == "eager" else 4  # the logarithms and two gradients: the peak of the step
        yield Line(
            part="activations",
            share=share,
            what="logits",
            bytes=_ceil(rank.tokens * recipe.vocab * (wide + softmax) * heads, degrees.tp),
            formula=f"{rank.tokens} tokens * {recipe.vocab} / tp {degrees.tp} * ({wide} + {softmax}) B * {heads} heads",
        )


def _written_out(rank: _Rank) -> Iterator[Line]:
    """The blocks of each kind in eager torch; with full recomputation only the largest."""
    kinds = {
        letter: eager_activations.kept(rank.recipe, letter, rank.element_bytes) for letter in sorted(set(rank.letters))
    }
    times = {letter: rank.letters.count(letter) for letter in kinds}
    if rank.recipe.recompute == "full":
        times = {max(kinds, key=lambda letter: sum(kinds[letter].values())): 1}
    for letter, layers in times.items():
        yield Line(
            part="activations",
            share="replicated",
            what=f"{letter} blocks: {', '.join(name for name, size in kinds[letter].items() if size)}",
            bytes=rank.tokens * sum(kinds[letter].values()) * layers,
            formula=f"{rank.tokens} tokens * ({' + '.join(f'{size}' for size in kinds[letter].values() if size)}) B"
            f" * {layers} layers",
        )


def _routing(rank: _Rank) -> Iterator[Line]:
    """Router logits and expert buffers, kept for the backward pass of every E block.

    In the own-axis layout the ranks of an EP group share one batch; in the borrowed layout each has its own tokens.
    """
    recipe, degrees, moe = rank.recipe, rank.spread.degrees, rank.recipe.moe
    layers = rank.letters.count("E")
    if moe is None or not layers:
        yield Line(part="routing", share="replicated", what="none", bytes=0, formula="no E block with experts: 0")
        return
    passes, chunks = rank.in_flight
    local = rank.tokens // (degrees.tp if degrees.sp else 1)
    routed = local * (degrees.ep if rank.spread.layout == "borrowed" else 1)
    slots, experts = capacity_of_an_expert(routed, moe.top_k, moe.experts), moe.experts // degrees.ep
    held = f"{layers} E * {_in_flight(passes, chunks)}"
    if recipe.recompute == "full":
        layers, passes, chunks, held = 1, 1, 1, "the E being recomputed"
    yield Line(
        part="routing",
        share="replicated",
        what="router logits",
        bytes=_ceil(local * moe.experts * 4 * layers * passes, chunks),
        formula=f"{local} tokens * {moe.experts} experts * 4 B * {held}",
    )
    if rank.spread.kernels == "eager":
        row = moe.top_k * recipe.hidden * (rank.element_bytes + 4)
        what, formula = "rows of experts, and weighed in float32", f"{local} tokens * {row} B * {held}"
        yield Line(part="routing", share="ep", what=what, bytes=local * row * layers, formula=formula)
        return
    yield Line(
        part="routing",
        share="ep",
        what="expert buffers",
        bytes=_ceil(2 * experts * slots * recipe.hidden * rank.element_bytes * layers * passes, chunks),
        formula=f"2 * {experts} local experts * {slots} slots * {recipe.hidden} * {rank.element_bytes} B * {held}",
    )


def _communication(rank: _Rank) -> Iterator[Line]:
    recipe, degrees, wide = rank.recipe, rank.spread.degrees, rank.element_bytes
    if rank.spread.sharding == "full":
        cut = [share for share in SHARES if rank.shards(share) > 1]
        largest = max(sum(rank.held(unit, share) for share in cut) for unit in rank.units)
        size, formula = (
            largest * (2 * wide + 4),
            f"{largest:_} parameters * (2 gathered * {wide} B + 1 unreduced * 4 B)",
        )
        what = "the largest block and the next"
    else:
        over = rank.shards("tp")
        everything = sum(rank.held(unit, share) for unit in rank.units for share in SHARES)
        bucket = min(max(BUCKET_PARAMETERS, 1_000_000 * over), everything) if over > 1 else 0
        size, formula, what = bucket * 4, f"{bucket:_} parameters * 4 B", "one gradient bucket"
    yield Line(part="communication", share="replicated", what=what, bytes=size, formula=formula)
    row = recipe.hidden * wide
    if degrees.sp:
        formula = f"{rank.tokens} tokens * {recipe.hidden} * {wide} B"
        yield Line(
            part="communication", share="tp", what="the gathered sequence", bytes=rank.tokens * row, formula=formula
        )
    if degrees.pp > 1:
        local = rank.tokens // (degrees.tp if degrees.sp else 1)
        formula = f"2 * {local} tokens * {recipe.hidden} * {wide} B"
        yield Line(
            part="communication",
            share="replicated",
            what="to and from neighbours",
            bytes=2 * local * row,
            formula=formula,
        )


def _in_flight(passes: int, chunks: int) -> str:
    return f"{passes} in flight" if chunks == 1 else f"{passes}/{chunks} in flight"


def _reserve() -> Line:
    what = "context, libraries, workspaces"
    return Line(part="reserve", share="replicated", what=what, bytes=RESERVE_BYTES, formula=f"{RESERVE_BYTES:_} B")


def _ceil(above: int, below: int) -> int:
    return -(-above // below)
