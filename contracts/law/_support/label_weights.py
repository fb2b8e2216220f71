"""What a label weighs in a step of several microbatches or ranks, by what a stack declares."""

from collections.abc import Sequence

from contracts.spec import Execution, NotOffered, Training, chosen

WINDOW = ("window-divides-by",)
_OF_A_MICROBATCH = {"window-divides-by": "microbatch-means", "balance-over": "microbatch"}


def label_shares(stack: Training, labels: Sequence[int], microbatches: int) -> list[float]:
    """What each sequence weighs in the loss of a step, whose microbatches differ by one sequence at most.

    `labels` are the labels that count in each sequence. A microbatch without one weighs nothing and counts as one.
    """
    if chosen(stack, "window-divides-by") == "labels":
        return [count / max(sum(labels), 1) for count in labels]
    found: list[float] = []
    each, more = divmod(len(labels), microbatches)
    for number in range(microbatches):
        part = labels[len(found) : len(found) + each + (number < more)]
        found += [count / max(sum(part), 1) / microbatches for count in part]
    return found


def like_on_one_rank(stack: Training, execution: Execution) -> int:
    """The number of microbatches with which one rank takes the step of many ranks: 1, unless each takes its own mean.

    Raises:
        NotOffered: if load counts the microbatches so far, and each has rows of several ranks.
    """
    follows = getattr(stack, "conventions", ())
    degrees = execution.degrees
    apart = degrees.pp * degrees.tp * degrees.cp * (degrees.ep if execution.layout == "own-axis" else 1)
    ranks = execution.world // apart
    if "balance-over" in follows and chosen(stack, "balance-over") == "global-batch":
        if ranks > 1 and execution.microbatches > 1:
            raise NotOffered("declares a balance loss of microbatches that no single rank has", "case")
        return execution.microbatches
    if any(name in follows and chosen(stack, name) == choice for name, choice in _OF_A_MICROBATCH.items()):
        return ranks * execution.microbatches
    return 1
