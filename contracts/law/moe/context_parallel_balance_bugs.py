"""Ranks that balance experts over their own part of a row."""

from contracts.law._bugs.multi_rank import routed
from contracts.law._bugs.numeric import ParallelTrainer, broken, collectives


# balance
@broken(ParallelTrainer, "build", "MOE-05g[cp2]: aux is", "MOE-05i[cp2]: aux is", bugs=("AUX-15",))
def balances_each_run_by_itself(build, self):
    """f counts the tokens of one rank only, so the loss asks for balance within each part of a row."""
    model = build(self)
    for moe in routed(model):
        moe.router.sequence = None
    return model


@broken(ParallelTrainer, "build", "MOE-05g[cp2]: loss agrees, norm is", bugs=("AUX-01",))
def takes_the_balance_of_a_run_for_that_of_the_row(build, self):
    """The reported losses are parts and add up right; on each rank the gradients equal a whole loss's."""
    model, ranks = build(self), self.execution.degrees.cp

    def whole(_, args, out):
        return out._replace(losses={name: collectives.scale_gradient(each, ranks) for name, each in out.losses.items()})

    for moe in routed(model):
        moe.register_forward_hook(whole)
    return model


@broken(ParallelTrainer, "over_parts", "MOE-05g[cp2]: z is", bugs=("AUX-15",))
def tells_the_z_loss_of_one_run(over_parts, self, values):
    """The reported z loss is summed over data-parallel ranks only."""
    own = {name: values[name] for name in ("z",) if name in values}
    return over_parts(self, values) | {
        name: collectives.sum_over_ranks(each, self.mesh.group("rows")) for name, each in own.items()
    }


@broken(
    ParallelTrainer,
    "over_parts",
    "MOE-06g[cp2]: assignments, expected 192",
    "PAR-02g[cp2-ep2-fsdp]: hold different values of",
)
def moves_biases_by_the_tokens_of_one_rank(over_parts, self, values):
    """Each rank moves its copy of a bias by the tokens of its own part of the row, so the copies drift apart."""
    own = {name: each.clone() for name, each in values.items() if name.endswith(".counts")}
    return over_parts(self, values) | own


@broken(ParallelTrainer, "over_parts", "MOE-06g[cp2]: assignments, expected 192")
def counts_assignments_on_each_rank_of_a_row(over_parts, self, values):
    """Over-correction: the counts of a row are summed over ranks that have each summed them already."""
    found = over_parts(self, values)
    return {
        name: each * self.execution.degrees.cp if name.endswith(".counts") else each for name, each in found.items()
    }
