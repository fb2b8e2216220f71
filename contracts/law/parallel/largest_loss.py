"""The largest loss of a rank, which a log has beside the mean: it shows the rank whose data is bad."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.small_models import DENSE, GROUPED_EXPERTS, Cell, cell, session
from contracts.law._support.step_comparison import on_one_rank
from contracts.spec import FLOAT32_TRANSFORMER, Execution, Recipe, Tokens, Training

PLAIN = replace(DENSE, name="plain", qk_norm=False)
RANKS: dict[str, Cell] = {
    "dense-dp2": cell(PLAIN, 2),
    "fsdp2": cell(GROUPED_EXPERTS, 2, fsdp=True),
    "dp4": cell(PLAIN, 4),
}


@contract(
    "PAR-01j", asks=("built", "train"), cases=RANKS, tier="dist", source="torchtitan: Trainer.train_step",
    needs={"": ("largest-loss",), "fsdp2": ("largest-loss", "experts")},
)  # fmt: skip
def the_largest_loss_is_the_mean_of_one_rank(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """The largest loss that a step reports is the largest of the ranks' losses, each the mean over the labels of that
    rank's rows.

    Ranks have unequal numbers of labels. What divides a rank's sum by the labels of all ranks reports less than the
    mean, and on more ranks less still: a rank with bad data never shows.
    """
    asked = session(stack, recipe, execution, 1, "largest")
    alone = replace(asked, observe=frozenset(), execution=Execution(precision=asked.execution.precision))
    means = [on_one_rank(stack, replace(alone, batches=(each,))).steps[0].losses["lm"]
             for each in _of_ranks(asked.batches[0], world)]  # fmt: skip
    got, want = stack.train(asked).steps[0].largest, max(means)
    assert got is not None, f"a step on {world} ranks reported no largest loss"
    words = ", ".join(f"{each:.7g}" for each in means)
    assert abs(got - want) <= FLOAT32_TRANSFORMER.bound * want, (
        f"the largest loss is {got:.7g} on {world} ranks whose mean losses are {words}"
    )


def _of_ranks(batch: Tokens, world: int) -> list[Tokens]:
    """The rows of each rank."""
    tokens, labels = (numerics.tensor(each).chunk(world) for each in (batch.tokens, batch.labels))
    return [Tokens(tokens=numerics.array(one), labels=numerics.array(other))
            for one, other in zip(tokens, labels, strict=True)]  # fmt: skip
