"""Losses of a router that depend on the layout or on the labels of a step."""

from contracts.law._bugs.numeric import IGNORED, ParallelTrainer, Router, Trainer, broken, mutant, with_attributes


@broken(
    ParallelTrainer,
    "reduce",
    "MOE-05i[tp2-sp-etp1]: router.weight differs",
    "MOE-05i[tp2-sp-z-alone]: router.weight differs",
)
def sums_the_router_over_tp(reduce, self):
    """The router's gradient is summed over ranks that computed all of it: TP times the gradient; the loss is right."""
    reduce(self)
    for name, parameter in self.model.named_parameters():
        if name.endswith("router.weight") and parameter.grad is not None:
            parameter.grad.mul_(self.execution.degrees.tp)


@broken(Router, "balance_loss", "MOE-05i[dp2-balance-alone]: aux is")
def changes_with_the_microbatch(balance_loss, self, probabilities_BTE, experts_BTK):
    """Balances microbatches without a word: each layout learns another router."""
    return balance_loss(self, probabilities_BTE.flatten(0, 1)[None], experts_BTK.flatten(0, 1)[None])


@broken(Router, "balance_loss", "MOE-05i[groups-cp2]: aux is", "MOE-05i[groups-tp2-sp-etp1]: aux is")
def balances_groups_by_its_own_tokens(balance_loss, self, probabilities_BTE, experts_BTK):
    """With groups of experts, a rank takes f over its own part of the sequence."""
    kept, self.sequence = self.sequence, self.sequence if self.moe.groups is None else None
    try:
        return balance_loss(self, probabilities_BTE, experts_BTK)
    finally:
        self.sequence = kept


with_attributes(
    "DeclaresTheGlobalBatch",
    "Declares the load of all ranks, and takes the load of its own microbatch.",
    "MOE-05i[dp2]: aux is",
    owner=changes_with_the_microbatch,
    conventions={"balance-over": "global-batch"},
)


@mutant(of="MOE-05j", case="balance", says="times as much where few positions have a label")
@broken(Trainer, "accumulate", "MOE-05j[z-in-five]: times as much where few positions have a label", leanest="")
def divides_by_the_labels_of_the_step(accumulate, self, micro, counts):
    """Every gradient is divided by the labels of the step: where a tenth of the positions has a label, the balance loss
    weighs ten times as much."""
    share = counts["lm"].clamp(min=1) / micro.labels_BT.numel() / self.execution.microbatches
    return accumulate(self, micro, {**counts, "aux": counts["aux"] * share, "z": counts["z"] * share})


@broken(Trainer, "count", "MOE-05j[balance-in-five]: times as much where few positions have a label")
def averages_over_rows_with_a_label(count, self, micro):
    """The balance loss is a sum over all rows, divided by those that have a label."""
    found = count(self, micro)
    return found | {"aux": found["aux"] * (micro.labels_BT != IGNORED).any(1).float().mean().clamp(min=0.1)}


@broken(Trainer, "accumulate", "MOE-05j[balance-in-five]: is nan times as much where few positions have a label")
def multiplies_and_divides_by_no_label(accumulate, self, micro, counts):
    """The balance loss of a microbatch is multiplied by its labels and divided by them: 0 / 0 where it has none."""
    labels = self.count(micro)["lm"]
    return accumulate(self, micro, {**counts, "aux": counts["aux"] * (labels / labels)})


@mutant(of="MOE-05j", case="balance", says="the loss adds nothing to the gradient of any router")
@broken(Trainer, "accumulate", "MOE-05j[z]: the loss adds nothing to the gradient of any router", leanest="")
def reports_the_losses_of_routers_alone(accumulate, self, micro, counts):
    """The losses of a router are reported, and the loss that is differentiated is without them."""
    return accumulate(self, micro, {**counts, **{name: counts[name] * 10**12 for name in ("aux", "z")}})
