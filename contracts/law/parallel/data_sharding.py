"""Which rank reads which sequences, and that a token keeps its label where sequences are cut."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import gathered, here
from contracts.law._support.answers import refusal_of
from contracts.law._support.late import torch
from contracts.law._support.multi_rank_run import SPREAD, batches, borrowed, one_rank_and_many, own_axis
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.step_comparison import gradient_differences, label_difference, loss_difference
from contracts.spec import Data, Execution, Mtp, Recipe, Session, Tokens, Training

AHEAD = replace(SPREAD, name="spread-ahead", mtp=Mtp(depth=2, loss_weight=0.4))
AT_EDGES: dict[str, tuple[Recipe, Execution, int]] = {
    name: (recipe, execution, execution.world)
    for name, recipe, execution in (
        ("tp2-sp", AHEAD, own_axis(2, tp=2, sp=True)),
        ("borrowed-tp2-sp-ep2-etp1", AHEAD, borrowed(2, tp=2, ep=2, etp=1, sp=True)),
        ("tp4-sp", replace(AHEAD, kv_groups=4, replicate_ssm_groups=True), own_axis(4, tp=4, sp=True)),
    )
}


@contract("PAR-06g", asks=("built", "train"), cases=AT_EDGES, source="F05; ROP-23", tier="dist")
def labels_at_the_edges_of_a_run_count(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Under sequence parallel, the label of a rank's last token is the first token of the next rank, for the main loss
    and for the prediction heads.

    Only labels next to the cuts count in this batch. If each rank shifts labels by itself, one label in T / TP is lost,
    and no loss curve shows it.
    """
    ((alone, many),) = one_rank_and_many(stack, recipe, execution, (_edges(execution.degrees.tp),), "gradients")
    assert many.tokens == alone.tokens == 4 * 2 * len(_cuts(execution.degrees.tp)), f"{many.tokens} labels count"
    words = loss_difference(alone, many, "lm", "mtp") or gradient_differences(alone, many)
    assert not words, words


def _edges(cuts: int) -> Tokens:
    """The batch with labels only for the last two tokens before each cut, in rows of one document."""
    (given,) = batches(1)
    tokens_BT = numerics.tensor(given.tokens)
    labels_BT = torch.full_like(tokens_BT, -100)
    for cut in _cuts(cuts):
        labels_BT[:, cut - 2 : cut] = tokens_BT[:, cut - 1 : cut + 1]
    return replace(given, labels=numerics.array(labels_BT), documents=None)


def _cuts(ranks: int) -> list[int]:
    return [16 // ranks * index for index in range(1, ranks)]


READ: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "dp2": own_axis(2),
        "fsdp2": own_axis(2, fsdp=True),
        "ep2": own_axis(2, ep=2),
        "tp2": own_axis(2, tp=2),
        "borrowed-ep2": borrowed(2, ep=2),
        "hsdp-2x2": own_axis(4, fsdp=True, replicas=2),
        "tp2-ep2": own_axis(4, tp=2, ep=2),
    }.items()
}
UNEVEN = replace(SPREAD, name="spread-uneven", batch=replace(SPREAD.batch, total=5))
"""Five sequences a step, which no even number of ranks divides."""


@contract("PAR-06h", asks=("built", "train"), cases=READ, source="F05", tier="dist")
def ranks_read_every_sequence_once(stack: Training, execution: Execution, world: int) -> None:
    """With the stack's own data, the ranks together read the sequences that one rank reads, each once, in each of three
    steps.

    A rank that reads another rank's rows may still report the right ids; its losses and gradients come from another
    batch.
    """
    found = one_rank_and_many(stack, UNEVEN, execution, (), "gradients", steps=3)
    for alone, many in found:
        assert many.samples == alone.samples, f"step {alone.number} reads {many.samples}, on one rank {alone.samples}"
        assert len(set(many.samples)) == 5, f"step {alone.number} reads {many.samples}, expected five different ones"
        words = label_difference(alone, many)
        assert not words, words
    alone, many = found[0]
    words = loss_difference(alone, many) or gradient_differences(alone, many)
    assert not words, words


UNREADABLE: dict[str, tuple[Execution, int, int]] = {  # the rank whose node has no such file
    "dp2-rank-1": (own_axis(2), 1, 2),
    "tp2-rank-0": (own_axis(2, tp=2), 0, 2),
}


@contract("PAR-06m", asks="train", cases=UNREADABLE, source="F04", tier="dist")
def what_one_rank_cannot_read_every_rank_refuses(stack: Training, execution: Execution, blind: int, world: int) -> None:
    """If one rank cannot read the data, every rank refuses the run, with the path, before it takes a step.

    A rank that fails by itself leaves the others in their next collective, and what they report is a time-out of the
    network.
    """
    with shared_folder() as at:
        if here().rank == 0:
            (at / "text").write_bytes(bytes(range(1, 128)) * 8)
        gathered("written")
        path = at / ("elsewhere" if here().rank == blind else "text")
        recipe = replace(SPREAD, data=Data(path=str(path)))
        refused = refusal_of(stack.train, Session(recipe=recipe, steps=1, execution=execution))
        told = gathered(str(refused))
    assert all("elsewhere" in words for words in told), f"the refusals do not all name {at / 'elsewhere'}: {told}"
