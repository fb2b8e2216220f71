"""Attention and a scan side by side, joined wrongly."""

from contracts.law._bugs.mamba_parts import unpacked
from contracts.law._bugs.numeric import WHOLE_SEQUENCE, Layer, Output, TensorParallel, all_reduce, broken
from contracts.stacks.reference.model.blocks import ParallelMixers
from contracts.stacks.reference.parallel.collectives import copy_to_ranks


@broken(ParallelMixers, "added", "BLK-12a[plain]: y differs: ")
def leaves_the_scales_out(added, self, attended_BTD, scanned_BTD):
    """The branches are added up as they are."""
    return attended_BTD + scanned_BTD


@broken(ParallelMixers, "added", "BLK-12a[plain]: y differs: ")
def gives_both_branches_one_scale(added, self, attended_BTD, scanned_BTD):
    """The scale of attention stands at the sum."""
    return self.scales.attention_scale * (attended_BTD + scanned_BTD)


@broken(ParallelMixers, "added", "BLK-12a[latent]: y differs: ")
def takes_the_mean_of_the_branches(added, self, attended_BTD, scanned_BTD):
    """Their mean, as Hymba has it, in place of their sum."""
    return added(self, attended_BTD, scanned_BTD) / 2


@broken(ParallelMixers, "added", "BLK-12a[plain]: the gradient of mixer.ssm.")
def the_scale_of_the_scan_has_no_gradient(added, self, attended_BTD, scanned_BTD):
    """The scale of the scan takes part in the output and not in the gradient."""
    scanned_BTD = scanned_BTD + (self.scales.ssm_scale - 1) * scanned_BTD.detach()
    return self.scales.attention_scale * attended_BTD + scanned_BTD


@broken(ParallelMixers, "forward", "BLK-12a[plain]: y differs: ")
def the_scan_reads_what_attention_gives(forward, self, x_BTD, packing, state):
    """One branch after the other in place of beside it."""
    attended = self.attention(x_BTD, packing, {})
    scanned = self.ssm(attended.y_BTD, packing, state)
    return Output(self.added(attended.y_BTD, scanned.y_BTD), {}, scanned.state, attended.seen)


@broken(ParallelMixers, "forward", "BLK-12a[packed-with-state]: y differs: ")
def the_scan_beside_attention_begins_empty(forward, self, x_BTD, packing, state):
    """The state before the first token reaches neither branch."""
    return forward(self, x_BTD, packing, {})


@broken(ParallelMixers, "forward", "BLK-02c[beside-attention]: document 0 changes the output at token 3 of another one")
def resets_documents_in_attention_only(forward, self, x_BTD, packing, state):
    """Attention has a mask of documents; the scan beside it runs through the row."""
    attended, scanned = self.attention(x_BTD, packing, {}), self.ssm(x_BTD, unpacked(packing), state)
    return Output(self.added(attended.y_BTD, scanned.y_BTD), {}, scanned.state, attended.seen)


@broken(ParallelMixers, "forward", "BLK-02c[beside-attention]: document 0 changes the output at token 3 of another one",
        "BLK-04d[beside-attention]: the gradient by x of document 0 of row 0 differs")  # fmt: skip
def resets_documents_in_the_scan_only(forward, self, x_BTD, packing, state):
    """The scan begins anew in each document; attention sees the whole row before a token."""
    attended, scanned = self.attention(x_BTD, unpacked(packing), {}), self.ssm(x_BTD, packing, state)
    return Output(self.added(attended.y_BTD, scanned.y_BTD), {}, scanned.state, attended.seen)


@broken(ParallelMixers, "forward", "BLK-01c[beside-attention]: a loss on tokens before 23 has a gradient by x")
def attention_beside_a_scan_sees_the_future(forward, self, x_BTD, packing, state):
    """Of the two masks that a layer has, attention gets the scan's, which says only whose document a token is."""
    self.attention.visible = lambda given: given.documents_BT[:, :, None] == given.whole_row[:, None, :]
    return forward(self, x_BTD, packing, state)


@broken(Layer, "branch", "PAT-12e[side-by-side]: the logit tensor differs")
def the_scan_adds_the_residual_itself(branch, self, x_BTD, packing):
    """A layer of two mixers adds the stream to each of them, and so twice."""
    found = branch(self, x_BTD, packing)
    twice = isinstance(self.mixer, ParallelMixers)
    return Output(found.y_BTD + x_BTD if twice else found.y_BTD, found.losses, found.state, found.seen)


@broken(Layer, "branch", "PAT-12e[side-by-side]: the logit tensor differs")
def one_branch_reads_the_stream_before_the_norm(branch, self, x_BTD, packing):
    """The norm belongs to attention: the scan beside it reads the residual stream."""
    if not isinstance(self.mixer, ParallelMixers):
        return branch(self, x_BTD, packing)
    attended = self.mixer.attention(self.norm(x_BTD), packing, {})
    return Output(self.mixer.added(attended.y_BTD, self.mixer.ssm(x_BTD, packing, {}).y_BTD))


@broken(TensorParallel, "mixer", "PAR-01a[tp2-side-by-side]: loss is ", "PAR-01a[tp2-sp-side-by-side]: loss is ")
def sums_the_scan_over_ranks_twice(mixer, self, module):
    """The scan beside attention keeps the reduction of an M block, and what it gives is reduced again with the sum."""
    if isinstance(module, ParallelMixers):
        module.ssm.register_forward_hook(lambda _, args, out: out._replace(y_BTD=all_reduce(out.y_BTD, self.group)))
    mixer(self, module)


@broken(TensorParallel, "mixer", "PAR-01a[tp2-side-by-side]: loss agrees, norm is")
def sums_the_gradient_of_what_the_scan_reads_twice(mixer, self, module):
    """Each branch enters the ranks by itself, and their common input once more. The loss is right."""
    if isinstance(module, ParallelMixers):
        module.ssm.register_forward_pre_hook(lambda _, args: (copy_to_ranks(args[0], self.group), *args[1:]))
    mixer(self, module)


@broken(ParallelMixers, "forward", "PAR-01g[cp2-side-by-side]: loss is ")
def the_scan_beside_attention_stays_on_its_rank(forward, self, x_BTD, packing, state):
    """Only attention asks the ranks that have the rest of a row."""
    for each in self.ssm.modules():
        if hasattr(each, "row"):
            each.row = WHOLE_SEQUENCE
    return forward(self, x_BTD, packing, state)
