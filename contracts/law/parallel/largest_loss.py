"""The largest loss of a rank, which a log has beside the mean: it shows the rank whose data is bad."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import gathered
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, Cell, cell, session
from contracts.law._support.step_comparison import on_one_rank
from contracts.spec import FLOAT32_TRANSFORMER, Execution, Recipe, Tokens, Training

PLAIN = replace(DENSE, name="plain", qk_norm=False)
RANKS: dict[str, Cell] = {
    "dense-dp2": cell(PLAIN, 2),
    "fsdp2": cell(GROUPED_EXPERTS, 2, fsdp=True),
    "dp4": cell(PLAIN, 4),
    "borrowed-ep2-fsdp": cell(GROUPED_EXPERTS, 2, ep=2, fsdp=True),
    "dense-tp2-sp-dp2": cell(PLAIN, 4, tp=2, sp=True),
    "dense-cp2-dp2": cell(PLAIN, 4, cp=2),
    "dense-pp2-dp2": cell(replace(PLAIN, pattern="AE|AE"), 4, pp=2, microbatches=2),
}
OF_A_PART = 3.0
"""How much more than its rows' mean the loss of a rank may be that has some tokens of each of them."""


@contract(
    "PAR-01j", asks=("built", "train"), cases=RANKS, tier="dist", source="torchtitan: Trainer.train_step",
    needs={"": ("largest-loss",)} | dict.fromkeys(("fsdp2", "borrowed-ep2-fsdp"), ("largest-loss", "experts")),
)  # fmt: skip
def the_largest_loss_is_the_mean_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """The largest loss that a step reports is the largest of the ranks' losses, each the mean over the labels of that
    rank's rows.

    Ranks have unequal numbers of labels. What divides a rank's sum by the labels of all ranks reports less than the
    mean, and on more ranks less still: a rank with bad data never shows. Under context parallel the loss of a rank may
    be the mean over its own tokens, some of which have a greater one.
    """
    asked = session(stack, recipe, execution, 1, "largest")
    alone = replace(asked, observe=frozenset(), execution=Execution(precision=asked.execution.precision))
    degrees = execution.degrees
    readers = world // (degrees.tp * degrees.cp * degrees.pp)
    means = [on_one_rank(stack, replace(alone, batches=(each,))).steps[0].losses["lm"]
             for each in _of_ranks(asked.batches[0], readers)]  # fmt: skip
    got, want = stack.train(asked).steps[0].largest, max(means)
    if degrees.pp > 1:  # a stage without labels may report anything: what the last one reports is logged
        got = gathered(got)[world - 1]
    assert got is not None, f"a step on {world} ranks reported no largest loss"
    words = ", ".join(f"{each:.7g}" for each in means)
    most = want * (1 if degrees.cp == 1 else OF_A_PART)
    assert want * (1 - FLOAT32_TRANSFORMER.bound) <= got <= most * (1 + FLOAT32_TRANSFORMER.bound), (
        f"the largest loss is {got:.7g} on {world} ranks whose mean losses are {words}"
    )


def _of_ranks(batch: Tokens, world: int) -> list[Tokens]:
    """The rows of each rank."""
    tokens, labels = (numerics.tensor(each).chunk(world) for each in (batch.tokens, batch.labels))
    return [Tokens(tokens=numerics.array(one), labels=numerics.array(other))
            for one, other in zip(tokens, labels, strict=True)]  # fmt: skip
