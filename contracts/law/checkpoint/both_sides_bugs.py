"""Trainers that do not find in a checkpoint what an earlier version has written."""

from contracts.law._bugs.numeric import Trainer, broken


@broken(Trainer, "load", "CKPT-08a[dense]: weights: the state layers.0.mixer.q_norm.weight differs")
def leaves_a_renamed_norm_as_it_was_drawn(load, self, state, position):
    """A norm has another name now, and a load that is not strict looks for no other."""
    drawn = {name: each.clone() for name, each in self.state().items() if "weights/" in name and "q_norm" in name}
    load(self, {**state, **drawn}, position)


@broken(Trainer, "load", "CKPT-08a[heads]: optimizer: the state")
def begins_the_moments_of_renamed_heads_anew(load, self, state, position):
    """Heads that look ahead have other names now: a table maps those of weights and not those of moments."""
    moments = {name: 0 * each for name, each in state.items() if "optimizer/" in name and "mtp" in name}
    load(self, {**state, **moments}, position)
