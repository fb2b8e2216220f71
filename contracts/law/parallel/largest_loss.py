"""The largest loss of a rank, which a log has beside the mean: it shows the rank whose data is bad."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import gathered
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, Cell, cell, session
from contracts.law._support.step_comparison import on_one_rank
from contracts.law._support.training_run import ROWS_OF_16, batch
from contracts.spec import FLOAT32_TRANSFORMER, Execution, Recipe, Tokens, Training

PLAIN = replace(DENSE, name="plain", qk_norm=False)
WHOLE: dict[str, Cell] = {
    "dense-dp2": cell(PLAIN, 2),
    "fsdp2": cell(GROUPED_EXPERTS, 2, fsdp=True),
    "dp4": cell(PLAIN, 4),
    "borrowed-ep2-fsdp": cell(GROUPED_EXPERTS, 2, ep=2, fsdp=True),
    "dense-tp2-sp-dp2": cell(PLAIN, 4, tp=2, sp=True),
    "dense-cp2-dp2": cell(PLAIN, 4, cp=2),
    "dense-pp2-dp2": cell(replace(PLAIN, pattern="AE|AE"), 4, pp=2, microbatches=2),
}
RANKS: dict[str, tuple[Recipe, Execution, int, bool]] = {name: (*each, False) for name, each in WHOLE.items()} | {
    "packed-dp2": (*cell(PLAIN, 2), True), "packed-cp2-dp2": (*cell(PLAIN, 4, cp=2), True),
}  # fmt: skip
OF_A_PART = 3.0
"""How much more than its rows' mean the loss of a rank may be that has some tokens of each of them."""


@contract(
    "PAR-01j", asks=("built", "train"), cases=RANKS, tier="dist", source="torchtitan: Trainer.train_step",
    needs={"": ("largest-loss",)} | dict.fromkeys(("fsdp2", "borrowed-ep2-fsdp"), ("largest-loss", "experts"))
    | dict.fromkeys(("packed-dp2", "packed-cp2-dp2"), ("largest-loss", "packed")),
)  # fmt: skip
def the_largest_loss_is_the_mean_of_one_rank(
    stack: Training, recipe: Recipe, execution: Execution, world: int, packed: bool
) -> None:
    """The largest loss that a step reports is the largest of the ranks' losses, each the mean over the labels of that
    rank's rows, whole or packed.

    Ranks have unequal numbers of labels. What divides a rank's sum by the labels of all ranks reports less than the
    mean, and on more ranks less still: a rank with bad data never shows. Under context parallel the loss of a rank may
    be the mean over its own tokens, some of which have a greater one.
    """
    asked = session(stack, recipe, execution, 1, "largest")
    if packed:
        asked = replace(asked, batches=(batch("largest", recipe.vocab, ROWS_OF_16),))
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


def _of_ranks(given: Tokens, world: int) -> list[Tokens]:
    """The rows of each rank."""
    cut = {name: map(numerics.array, numerics.tensor(each).chunk(world)) for name, each in vars(given).items() if each}
    return [Tokens(**dict(zip(cut, parts, strict=True))) for parts in zip(*cut.values(), strict=True)]
