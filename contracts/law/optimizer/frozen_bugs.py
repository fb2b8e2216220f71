"""Stacks that freeze too little, too much, or only at the start."""

import re
from contextlib import nullcontext

import torch

from contracts.law._bugs.numeric import (
    Layer,
    Model,
    Optimizer,
    ParallelTrainer,
    PipelineTrainer,
    Router,
    Trainer,
    broken,
)
from contracts.stacks.reference.optim.optimizer import members


@broken(
    Trainer, "choose", "OPT-10a[embedding]: embedding.weight is frozen and moved", "OPT-10a[tied]: is frozen and moved"
)
def freezes_nothing(choose, self, rates, frozen):
    """The option is read, and the optimizer was made before it."""
    choose(self, rates, frozenset())


@broken(Trainer, "choose", "OPT-10a[routers]: router.weight is frozen and has a gradient")
def freezes_by_a_rate_of_nothing(choose, self, rates, frozen):
    """A rate of 0 moves nothing; the norm counts the gradients, and all others are clipped more."""
    choose(self, {**rates, **dict.fromkeys(frozen, 0.0)}, frozenset())


@broken(Trainer, "choose", "OPT-10a[experts]: is frozen and moved")
def freezes_by_a_gradient_of_nothing(choose, self, rates, frozen):
    """Gradients are set to zero, and AdamW decays what it holds."""
    choose(self, rates, frozenset())
    clip = self.optimizer.clip

    def clipped():
        for member in self.optimizer.members:
            if member.name in frozen:
                member.parameter.grad = None
        return clip()

    self.optimizer.clip = clipped


@broken(Trainer, "choose", "OPT-10a[layer-1-of-12]: layers.10.norm.weight is trained and has no gradient", leanest="")
def freezes_by_the_beginning_of_a_name(choose, self, rates, frozen):
    """`layers.1` is the beginning of `layers.10` too."""
    begins = tuple(".".join(name.split(".")[:2]) for name in frozen)
    choose(self, rates, frozenset(name for name, _ in self.model.named_parameters() if name.startswith(begins)))


@broken(Layer, "forward", "OPT-10a[last-layers]: is trained and did not move")
def runs_frozen_layers_without_a_graph(forward, self, x, packing):
    """A layer that trains nothing runs under no_grad, and what stands before it learns nothing."""
    trained = any(each.requires_grad for each in self.parameters())
    with nullcontext() if trained else torch.no_grad():
        return forward(self, x, packing)


@broken(Model, "run", "OPT-10a[embedding-recomputed]: layers.0.norm.weight is trained and did not move")
def recomputes_only_what_is_given_a_gradient(run, self, layer, x, pack):
    """A reentrant checkpoint whose input requires no gradient gives an output that requires none."""
    with torch.no_grad() if self.recompute and not x.requires_grad else nullcontext():
        return run(self, layer, x, pack)


@broken(Router, "forward", "OPT-10a[routers]: with others frozen the gradient of")
def balances_nothing_beside_a_frozen_router(forward, self, x_BTD):
    """Over-correction: the auxiliary losses of a frozen router are left out, with what they teach the layers before."""
    found = forward(self, x_BTD)
    if self.weight.requires_grad:
        return found
    return found._replace(losses={name: each.detach() for name, each in found.losses.items()})


@broken(
    Trainer, "choose", "OPT-10b[frozen-later]: head.weight is frozen and moved", "OPT-10b[others]: is frozen and moved"
)
def keeps_what_is_frozen_in_the_optimizer(choose, self, rates, frozen):
    """No gradient comes, and the moments that were loaded still move it."""
    every = members(self.model)
    choose(self, rates, frozen)
    self.frozen = frozenset()
    self.optimizer = self.optimizer_class(self.recipe.optim, every, rates)


@broken(Trainer, "state", "OPT-10b[as-before]: after the load")
def saves_what_is_frozen_as_it_began(state, self):
    """Frozen weights are saved once, from the initial weights and not from those that were given."""
    initial = self.parts.initial(self.recipe)
    again = {f"weights/{name}": initial.tensor(name, tuple(each.shape)).to(each)
             for name, each in self.model.named_parameters() if name in self.frozen}  # fmt: skip
    return state(self) | again


@broken(Optimizer, "load", "OPT-10b[unfrozen]: was frozen and has taken 3 steps, expected 1")
def counts_the_steps_of_the_run(load, self, state):
    """Bias correction takes the run's steps for those of the moments, which begin at 0."""
    step = max((each for name, each in state.items() if name.endswith("/step")), default=None)
    blank = {key: each for key, each in self.blank().items() if key.rpartition("/")[0] in self.new}
    if step is not None:
        blank |= {key: step.clone() for key in blank if key.endswith("/step")}
    load(self, {**state, **blank})


@broken(Optimizer, "load", "OPT-10b[unfrozen]: which was trained, differs")
def begins_all_moments_anew(load, self, state):
    """Over-correction: groups that differ from the saved ones load nothing."""
    load(self, {} if self.new else state)


@broken(Trainer, "moments_in", "OPT-10b[unfrozen]: a legal input was refused")
def expects_moments_of_all(moments_in, self, saved):
    """Whatever was frozen, a checkpoint must have the state of all that is trained."""
    return {f"optimizer/{name}": each for name, each in self.optimizer.blank().items()}


@broken(ParallelTrainer, "choose", "OPT-10c[fsdp2]: norm is")
def freezes_a_layer_as_a_whole(choose, self, rates, frozen):
    """Parameters that are flattened together are trained together: one that is frozen freezes its layer."""
    layers = tuple(name.split("mixer.")[0] for name in frozen if "mixer." in name)
    choose(self, rates, frozenset(n for n, _ in self.model.named_parameters() if n in frozen or n.startswith(layers)))


@broken(ParallelTrainer, "choose", "OPT-10c[borrowed-ep2-rates]: experts.w2 differs")
def knows_no_rates_of_experts(choose, self, rates, frozen):
    """Rates are put to the parameters of the dense mesh; experts, which lie on their own, keep the recipe's."""
    choose(self, {name: rate for name, rate in rates.items() if "experts" not in name}, frozen)


@broken(PipelineTrainer, "move_biases", "OPT-10c[pp2-rates]: layers.4.mixer.router.bias differs")
def counts_rates_from_its_stage(move_biases, self, seen):
    """A stage looks up its biases' rates by the numbers that their layers have within it."""
    first, given = min(map(int, self.model.layers)), self.rates
    self.rates = {name: given.get(re.sub(r"\d+", lambda at: str(int(at[0]) - first), name, count=1), 1.0)
                  for name, _ in self.model.named_buffers()}  # fmt: skip
    move_biases(self, seen)
    self.rates = given


@broken(PipelineTrainer, "optimizer_of_members", "OPT-10c[pp2-tied]: grad_norm is")
def counts_copies_where_something_is_frozen(optimizer_of_members, self):
    """The optimizer that is made anew has not heard which tensors another stage counts."""
    made = optimizer_of_members(self)
    made.lent = frozenset() if self.frozen else made.lent
    return made
